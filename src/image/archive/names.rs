//! Names of container images: the grammar of the OCI distribution specification, and references as builders write them.

/// Longest repository, in characters.
const REPOSITORY_MAX: usize = 255;
/// Longest tag, in characters.
const TAG_MAX: usize = 128;
/// Longest reference, with its registry.
const REFERENCE_MAX: usize = 1024;
/// Whose repositories without a folder are in this one.
const DOCKER_HUB: [&str; 2] = ["docker.io", "index.docker.io"];
const HUB_FOLDER: &str = "library";

/// Whether it is the name of a repository.
pub fn is_repository(name: &str) -> bool {
    name.len() <= REPOSITORY_MAX && name.split('/').all(is_component)
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn is_component(component: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    if !ends.into_iter().all(|end| end.is_some_and(|byte| plain(*byte))) {
        return false;
    }
    bytes.split(|byte| plain(*byte)).all(|between| match between {
        [] | b"." | b"_" | b"__" => true,
        dashes => dashes.iter().all(|byte| *byte == b'-'),
    })
}

/// Whether it is a tag: `[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}`.
pub fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut bytes = tag.bytes();
    tag.len() <= TAG_MAX
        && bytes.next().is_some_and(word)
        && bytes.all(|byte| word(byte) || byte == b'.' || byte == b'-')
}

/// The hex digits of a digest by SHA-256, which is the only algorithm that is taken.
pub fn sha256_of(digest: &str) -> Option<&str> {
    digest.strip_prefix("sha256:").filter(|hex| crate::image::unhex(hex).is_some())
}

/// What the name of an image says, without the registry that it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RepositoryReference {
    pub(super) repository: String,
    /// None where it names a digest and no tag.
    pub(super) tag: Option<String>,
}

/// Reads the name of an image: `registry.k8s.io/pause:3.10`, `busybox`, `name@sha256:…`. The registry is left out, as
/// container runtimes do when they ask a mirror; what names none, or Docker Hub, and no folder is in the folder `library` there.
pub(super) fn reference(text: &str) -> Option<RepositoryReference> {
    if text.len() > REFERENCE_MAX {
        return None;
    }
    let (name, digest) = match text.split_once('@') {
        Some((name, digest)) => (name, Some(sha256_of(digest)?)),
        None => (text, None),
    };
    let folders = name.rfind('/').map_or(0, |at| at + 1);
    let (name, tag) = match name.get(folders..)?.split_once(':') {
        Some((last, tag)) => (name.get(..folders + last.len())?, Some(tag)),
        None => (name, None),
    };
    let is_registry = |first: &str| {
        first == "localhost" || first.contains(['.', ':']) || first.bytes().any(|byte| byte.is_ascii_uppercase())
    };
    let (registry, path) = match name.split_once('/') {
        Some((first, rest)) if is_registry(first) => (Some(first), rest),
        _ => (None, name),
    };
    let of_hub = registry.is_none_or(|registry| DOCKER_HUB.contains(&registry));
    let repository = if of_hub && !path.contains('/') { format!("{HUB_FOLDER}/{path}") } else { path.to_owned() };
    let tag = match (tag, digest) {
        (Some(tag), _) => Some(tag.to_owned()).filter(|tag| is_tag(tag)).map(Some)?,
        (None, Some(_)) => None,
        (None, None) => Some("latest".to_owned()),
    };
    is_repository(&repository).then_some(RepositoryReference { repository, tag })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_and_tags_have_the_grammar_of_the_specification() {
        let long = |length: usize| "a".repeat(length);
        for (name, good) in [
            ("pause", true),
            ("kube-apiserver", true),
            ("library/busybox", true),
            ("a/b/c0/d.e_f__g---h", true),
            (&*long(255), true),
            (&*long(256), false),
            ("", false),
            ("/", false),
            ("a/", false),
            ("/a", false),
            ("a//b", false),
            ("A", false),
            ("a.", false),
            (".a", false),
            ("a..b", false),
            ("a___b", false),
            ("a._b", false),
            ("a-_b", false),
            ("..", false),
            ("a/../b", false),
            ("a:b", false),
            ("ä", false),
            ("a\n", false),
        ] {
            assert_eq!(is_repository(name), good, "{name:?}");
        }
        for (tag, good) in [
            ("v1.34.4", true),
            ("_", true),
            ("3.10.1-amd64_x", true),
            (&*long(128), true),
            (&*long(129), false),
            ("", false),
            (".a", false),
            ("-a", false),
            ("a/b", false),
            ("a+b", false),
            ("a b", false),
        ] {
            assert_eq!(is_tag(tag), good, "{tag:?}");
        }
        let hex = "0123456789abcdef".repeat(4);
        for (digest, good) in [
            (format!("sha256:{hex}"), true),
            (format!("sha256:{}", hex.to_uppercase()), false),
            (format!("sha512:{hex}{hex}"), false),
            (format!("sha256:{}", &hex[1..]), false),
            (format!("sha256:{hex}/.."), false),
            (hex.clone(), false),
        ] {
            assert_eq!(sha256_of(&digest).is_some(), good, "{digest}");
        }
    }

    #[test]
    fn a_reference_is_a_repository_without_its_registry_and_a_tag() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (text, repository, tag) in [
            ("registry.k8s.io/kube-apiserver:v1.34.4", "kube-apiserver", Some("v1.34.4")),
            ("registry.k8s.io/coredns/coredns:v1.12.1", "coredns/coredns", Some("v1.12.1")),
            ("docker.io/library/busybox:1", "library/busybox", Some("1")),
            ("docker.io/busybox:1", "library/busybox", Some("1")),
            ("busybox", "library/busybox", Some("latest")),
            ("flannel/flannel:v0", "flannel/flannel", Some("v0")),
            ("localhost/mine:1", "mine", Some("1")),
            ("localhost:5000/mine", "mine", Some("latest")),
            ("10.0.0.1:5000/a/b:c", "a/b", Some("c")),
            (&*format!("ghcr.io/a/b@{digest}"), "a/b", None),
            (&*format!("ghcr.io/a/b:c@{digest}"), "a/b", Some("c")),
        ] {
            let wanted = RepositoryReference { repository: repository.to_owned(), tag: tag.map(str::to_owned) };
            assert_eq!(reference(text), Some(wanted), "{text}");
        }
        for text in [
            "",
            ":",
            "a:",
            "a:b:c",
            "registry.k8s.io/",
            "registry.k8s.io/../etc:1",
            "quay.io/Upper/case:1",
            "a@sha256:0",
            "a@",
            &*format!("{}/b:1", "a".repeat(2000)),
        ] {
            assert_eq!(reference(text), None, "{text:?}");
        }
    }
}
