//! Names as DNS has them, which those of objects are (RFC 1123, section 2.1).

/// Whether a text is a subdomain of at most 253 characters.
pub fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_dns_part)
}

/// Whether a text is a label of at most 63 characters.
pub fn is_dns_label(name: &str) -> bool {
    name.len() <= 63 && is_dns_part(name)
}

/// Whether a text is a part of a domain, of any length: small letters, digits, and hyphens within.
pub fn is_dns_part(part: &str) -> bool {
    let good = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = part.as_bytes();
    bytes.first().is_some_and(good)
        && bytes.last().is_some_and(good)
        && bytes.iter().all(|byte| good(byte) || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_small_letters_digits_and_hyphens_within() {
        for (name, wanted) in [
            ("a", true),
            ("a-1.b", true),
            ("", false),
            ("A", false),
            ("-a", false),
            ("a-", false),
            ("a..b", false),
            ("a_b", false),
        ] {
            assert_eq!(is_dns_subdomain(name), wanted, "{name}");
        }
        assert!(is_dns_label(&"a".repeat(63)) && !is_dns_label(&"a".repeat(64)) && !is_dns_label("a.b"));
        assert!(!is_dns_subdomain(&"a.".repeat(200)));
    }
}
