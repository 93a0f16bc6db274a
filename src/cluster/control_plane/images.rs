//! Names of container images. Pure.

/// Whether a text is a tag of an image.
pub(super) fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let first = text.bytes().next().is_some_and(word);
    first && text.len() <= 128 && text.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

/// The three numbers of a version that a tag begins with, as `v1.12.1_patched`.
pub(super) fn version(tag: &str) -> Option<[u32; 3]> {
    let plain = tag.strip_prefix('v').unwrap_or(tag);
    let end = plain.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(plain.len());
    let mut numbers = plain.get(..end)?.split('.').map(|number| number.parse::<u32>().ok());
    let version = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(version)
}

/// An image, in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImageReference {
    /// Registry and folders, without the slash at the end.
    pub(super) repository: String,
    /// Last part of the path.
    pub(super) name: String,
    /// Tag; empty where there is none.
    pub(super) tag: String,
    /// Digest with its `@`; empty where there is none.
    pub(super) digest: String,
}

impl ImageReference {
    /// The parts of a name like `registry.k8s.io/kube-proxy:v1.34.0`.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, format!("@{digest}")),
            None => (text, String::new()),
        };
        let (repository, last) = rest.rsplit_once('/').unwrap_or(("", rest));
        let (name, tag) = last.split_once(':').unwrap_or((last, ""));
        let fine = !name.is_empty() && (tag.is_empty() || is_tag(tag));
        fine.then(|| Self { repository: repository.to_owned(), name: name.to_owned(), tag: tag.to_owned(), digest })
    }

    /// The image of another tag; a digest is of the old one.
    pub(super) fn with_tag(self, tag: &str) -> Self {
        let same = self.tag == tag;
        Self { tag: tag.to_owned(), digest: if same { self.digest } else { String::new() }, ..self }
    }

    /// The image of another registry or folder.
    pub(super) fn with_repository(self, repository: &str) -> Self {
        Self { repository: repository.trim_end_matches('/').to_owned(), ..self }
    }

    /// Its name.
    pub(super) fn text(&self) -> String {
        let Self { repository, name, tag, digest } = self;
        let slash = if repository.is_empty() { "" } else { "/" };
        let colon = if tag.is_empty() { "" } else { ":" };
        format!("{repository}{slash}{name}{colon}{tag}{digest}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_have_versions() {
        for (tag, wanted) in [
            ("v1.12.1", Some([1, 12, 1])),
            ("1.8.6_patched", Some([1, 8, 6])),
            ("3.6.5-0", Some([3, 6, 5])),
            ("v1.12", None),
            ("v1.2.3.4", None),
            ("latest", None),
            ("", None),
            ("v1.99999999999.0", None),
        ] {
            assert_eq!(version(tag), wanted, "{tag}");
        }
        for (tag, wanted) in [("a", true), ("_a.b-c", true), (".a", false), ("a/b", false), ("", false), ("a b", false)]
        {
            assert_eq!(is_tag(tag), wanted, "{tag}");
        }
        assert!(!is_tag(&"a".repeat(129)));
    }

    #[test]
    fn images_are_read_and_changed() {
        for (text, tag, repository, wanted) in [
            ("registry.k8s.io/kube-proxy:v1.33.0", "v1.34.0", None, "registry.k8s.io/kube-proxy:v1.34.0"),
            ("host:5000/a/kube-proxy:v1", "v2", Some("other:1/x/"), "other:1/x/kube-proxy:v2"),
            ("kube-proxy", "v2", None, "kube-proxy:v2"),
            ("a/b:v1@sha256:00", "v2", None, "a/b:v2"),
            ("a/b:v1@sha256:00", "v1", None, "a/b:v1@sha256:00"),
        ] {
            let mut image = ImageReference::read(text).unwrap().with_tag(tag);
            if let Some(repository) = repository {
                image = image.with_repository(repository);
            }
            assert_eq!(image.text(), wanted);
        }
        for text in ["", "a/", "a/b:c d"] {
            assert_eq!(ImageReference::read(text), None, "{text}");
        }
    }
}
