//! Slipway's own schemes in URLs of images: `slipway://NAME`, an Image of the library, which hosts name; and `upload:FILE`, what is
//! sent to the appliance, which Images say.

use reqwest::Url;

use crate::apiserver::subdomain;

/// What the URL of a host's image begins with when it names an Image of the library.
pub const LIBRARY_SCHEME: &str = "slipway://";
/// What the URL of an Image begins with that is uploaded; the name of the file follows.
pub const UPLOAD_SCHEME: &str = "upload";

/// The Image of the library that the URL of a host's image names, if it names one.
pub fn named(url: &str) -> Option<&str> {
    url.strip_prefix(LIBRARY_SCHEME).filter(|name| subdomain(name).is_empty())
}

/// The name of the file that an Image's URL says is uploaded.
pub fn uploaded_file(url: &str) -> Option<&str> {
    let name = url.strip_prefix(UPLOAD_SCHEME)?.strip_prefix(':')?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+~-".contains(&byte);
    (!name.is_empty() && name.len() <= 255 && name.bytes().all(plain)).then_some(name)
}

/// The URL of an Image whose content is sent from a file of this name.
pub fn upload_url(file: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._+~-".contains(c) { c } else { '-' };
    let name: String = file.chars().map(plain).take(255).collect();
    format!("{UPLOAD_SCHEME}:{}", if name.is_empty() { "image" } else { &name })
}

/// Whether a URL is one of an upload.
pub(super) fn is_upload(url: &Url) -> bool {
    url.scheme() == UPLOAD_SCHEME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_the_library_is_a_name_and_nothing_else() {
        for (url, name) in [
            ("slipway://debian-12", Some("debian-12")),
            ("slipway://debian-12.raw", Some("debian-12.raw")),
            ("slipway://", None),
            ("slipway://a/b", None),
            ("slipway://a?b", None),
            ("slipway://user@a", None),
            ("slipway://a:1", None),
            ("slipway://..", None),
            ("slipway://Debian", None),
            ("SLIPWAY://a", None),
            ("slipway:a", None),
            ("http://a", None),
        ] {
            assert_eq!(named(url), name, "{url}");
        }
        assert_eq!(named(&format!("slipway://{}", "a".repeat(254))), None);
    }

    #[test]
    fn an_upload_is_named_by_its_file() {
        for (file, url) in [("debian 12.raw.xz", "upload:debian-12.raw.xz"), ("ä", "upload:-"), ("", "upload:image")] {
            assert_eq!(upload_url(file), url);
            assert!(uploaded_file(url).is_some());
        }
        for url in ["upload:", "upload:/etc/passwd", "upload://x", "upload:a?b", "http://x", "upload"] {
            assert_eq!(uploaded_file(url), None, "{url}");
        }
    }
}
