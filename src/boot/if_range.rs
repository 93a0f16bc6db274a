//! Conditional range requests (RFC 9110 section 13.1.5).

use http::HeaderMap;
use http::header::{ETAG, IF_RANGE, LAST_MODIFIED};

/// Whether `If-Range` holds of what would be answered with these headers; so it does when the request has none. Only the
/// very tag, not a weak one, and the very date say that the client has a part of this build and not of another.
pub(super) fn if_range_holds(request: &HeaderMap, answer: &HeaderMap) -> bool {
    let Some(held) = request.get(IF_RANGE) else { return true };
    let same = |name| answer.get(name).is_some_and(|now| now.as_bytes() == held.as_bytes());
    let is_tag = held.as_bytes().starts_with(b"\"");
    if is_tag { same(ETAG) } else { same(LAST_MODIFIED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_of_what_the_client_has() {
        const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
        // what the client has, the tag now, the date now, whether it is the same
        let rows = [
            (None, None, None, true),
            (Some("\"a\""), Some("\"a\""), None, true),
            (Some("\"a\""), Some("\"b\""), Some(DATE), false),
            (Some("\"a\""), None, Some(DATE), false),
            (Some("W/\"a\""), Some("W/\"a\""), None, false),
            (Some("W/\"a\""), Some("\"a\""), None, false),
            (Some(DATE), Some("\"a\""), Some(DATE), true),
            (Some(DATE), Some("\"a\""), Some("Sun, 06 Nov 1994 08:49:38 GMT"), false),
            (Some(DATE), Some("\"a\""), None, false),
            (Some("a"), Some("a"), None, false),
            (Some(""), Some("\"a\""), Some(DATE), false),
        ];
        for (held, tag, date, holds) in rows {
            let mut request = HeaderMap::new();
            request.extend(held.map(|held| (IF_RANGE, held.parse().expect("a value"))));
            let mut answer = HeaderMap::new();
            answer.extend(tag.map(|tag| (ETAG, tag.parse().expect("a value"))));
            answer.extend(date.map(|date| (LAST_MODIFIED, date.parse().expect("a value"))));
            assert_eq!(if_range_holds(&request, &answer), holds, "{held:?} {tag:?} {date:?}");
        }
    }
}
