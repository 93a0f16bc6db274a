//! What webhooks say beside yes and no.

use std::collections::HashSet;

use axum::response::Response;

use super::super::answers::status::with_warning;
use super::super::audit::OfWebhooks;

/// Letters of all warnings of an answer, and of one of them where they are more, as upstream.
const WARNINGS_MAX: usize = 4096;
const WARNING_MAX: usize = 256;
/// Annotations of all webhooks that one line of the audit log has.
const ANNOTATIONS_MAX: usize = 64;

/// The warnings that a client is told, as upstream: each once, none that a header cannot hold, and all of them cut short where
/// they are too much together.
pub(super) fn told(warnings: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut seen = HashSet::new();
    let sound = |warning: &String| !warning.is_empty() && !warning.chars().any(char::is_control);
    let all: Vec<String> = warnings.into_iter().filter(|one| sound(one) && seen.insert(one.clone())).collect();
    let length = |text: &str| text.chars().count();
    if all.iter().map(|one| length(one)).sum::<usize>() <= WARNINGS_MAX {
        return all;
    }
    let cut = all.into_iter().map(|one| one.chars().take(WARNING_MAX).collect::<String>());
    let so_far = |used: &mut usize, one: String| {
        let fits = *used < WARNINGS_MAX;
        *used += length(&one);
        fits.then_some(one)
    };
    cut.scan(0, so_far).collect()
}

/// What webhooks said of one request.
#[derive(Clone, Debug, Default)]
pub(in crate::apiserver) struct Remarks {
    /// For the client.
    pub warnings: Vec<String>,
    /// For the audit log.
    pub annotations: Vec<(String, String)>,
}

impl Remarks {
    /// More of the same request.
    pub fn add(&mut self, said: Self) {
        let before = std::mem::take(&mut self.warnings);
        self.warnings = told(before.into_iter().chain(said.warnings));
        self.annotations.extend(said.annotations);
        self.annotations.truncate(ANNOTATIONS_MAX);
    }

    /// Sends them with an answer.
    pub fn put_on(&self, response: Response) -> Response {
        let mut response = self.warnings.iter().fold(response, |response, warning| with_warning(response, warning));
        if !self.annotations.is_empty() {
            response.extensions_mut().insert(OfWebhooks(self.annotations.clone()));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_told_once_and_cut_short_where_they_are_many() {
        let long = |letter: char, count: usize| letter.to_string().repeat(count);
        let many: Vec<String> = (0..20).map(|index| format!("{index} {}", long('y', 298))).collect();
        for (given, wanted) in [
            (vec!["a".into(), String::new(), "b\nc".into(), "a".into()], vec!["a".to_owned()]),
            (vec![long('x', 4096)], vec![long('x', 4096)]),
            (vec![long('x', 4096), "a".into()], vec![long('x', 256), "a".into()]),
            (many.clone(), many[..16].iter().map(|one| one[..256].to_owned()).collect()),
        ] {
            assert_eq!(told(given), wanted);
        }
    }
}
