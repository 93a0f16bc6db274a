//! Which image sources are allowed.
//!
//! What the source of an image may be: the judgement that the API server's rules, the hosts' reconciler and the import
//! itself share.
//!
//! A file is opened folder by folder from the one that the configuration names, each by its descriptor, so that a symlink
//! put there meanwhile leads nowhere.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

use reqwest::Url;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::formats::{DiskLayout, is_archive};
use super::scheme::{LIBRARY_SCHEME, UPLOAD_SCHEME, is_upload, named, uploaded_file};
use super::{ImportError, MAX_LIBRARY_CHUNKS};
use crate::api::slipway::ImageSpec;
use crate::live::Live;
use crate::outbound::{Allowed, Guard};

/// Where images may come from, and how large they may become: `[image]` of the configuration.
#[derive(Clone, Debug)]
pub struct Sources {
    /// PEM file of further CAs for https, beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Addresses that are special to this box and may be fetched from all the same.
    pub allow: Live<Vec<Allowed>>,
    /// The one folder that files are read from; none: no file at all.
    pub file_folder: Option<PathBuf>,
    /// The appliance's own folder, of which nothing is read.
    pub data_dir: Option<PathBuf>,
    /// Most bytes that a disk has once it is unpacked.
    pub max_unpacked: u64,
    /// Most bytes that the library takes.
    pub max_library: u64,
    /// Most chunks that the library has: each takes memory, however little its content.
    pub max_chunks: usize,
}

impl Default for Sources {
    fn default() -> Self {
        let (ca_file, allow, file_folder, data_dir) = (None, Live::from(Vec::new()), None, None);
        let (max_unpacked, max_library, max_chunks) = (256 << 30, u64::MAX, MAX_LIBRARY_CHUNKS);
        Self { ca_file, allow, file_folder, data_dir, max_unpacked, max_library, max_chunks }
    }
}

/// What is wrong with a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFault {
    /// The field: `url`, `checksum`, `format` or `publish`.
    pub field: &'static str,
    /// Why, and what can be written instead.
    pub detail: String,
}

/// Bytes that a URL may have: what RFC 9110 section 4.1 asks everybody to support. Some are kept in memory.
pub const URL_MAX: usize = 8000;

/// Judges the URL of something that is fetched over the network. Hosts have no others: what lies on the appliance is
/// none of their users' affair.
///
/// # Errors
///
/// What a URL must be.
pub fn web_url(text: &str) -> Result<Url, String> {
    if text.len() > URL_MAX {
        return Err(format!("must have at most {URL_MAX} bytes"));
    }
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(url),
        _ => Err("must be a URL that begins with http:// or https:// and a host".into()),
    }
}

/// Judges what a host asks for: something on the network, or an Image of the library.
///
/// # Errors
///
/// The first fault.
pub fn check_host_source(url: &str, checksum: Option<&str>) -> Result<(), SourceFault> {
    let is_sums = |checksum: &&str| checksum.contains("://") || checksum.len() > URL_MAX;
    if named(url).is_some() {
        let sums = checksum.filter(is_sums).map(|_| SourceFault {
            field: "checksum",
            detail: format!("must be a hash, or left out, with a url of {LIBRARY_SCHEME}: the Image has been checked"),
        });
        return sums.map_or(Ok(()), Err);
    }
    if url.starts_with(LIBRARY_SCHEME) {
        let detail = format!("must be {LIBRARY_SCHEME}NAME with the name of an Image and nothing else");
        return Err(SourceFault { field: "url", detail });
    }
    web_url(url).map_err(|detail| SourceFault {
        field: "url",
        detail: format!("{detail}, or {LIBRARY_SCHEME}NAME with the name of an Image"),
    })?;
    match checksum.filter(is_sums) {
        Some(sums) => web_url(sums).map(|_| ()).map_err(|detail| SourceFault { field: "checksum", detail }),
        None => Ok(()),
    }
}

#[cfg(test)]
impl Sources {
    /// Loopback, and the files that tests make.
    pub(crate) fn of_tests() -> Self {
        let allow: Vec<Allowed> = ["127.0.0.0/8", "::1"].map(|entry| entry.parse().expect("an entry")).into();
        Self { allow: allow.into(), file_folder: Some(std::env::temp_dir()), ..Self::default() }
    }
}

impl Sources {
    /// Judges addresses by `image.allow`.
    pub fn guard(&self) -> Guard {
        Guard::new("image.allow", self.allow.clone())
    }

    /// What is wrong with an Image's spec, as far as can be told without a look at the network or the disk.
    pub fn faults(&self, spec: &ImageSpec) -> Vec<SourceFault> {
        let mut faults = Vec::new();
        let mut add = |field, judged: Result<(), String>| {
            faults.extend(judged.err().map(|detail| SourceFault { field, detail }));
        };
        add("url", self.check_url(&spec.url));
        if let Some(sums) = spec.checksum.as_deref().filter(|checksum| checksum.contains("://")) {
            add("checksum", self.check_url(sums));
        }
        if spec.checksum.as_ref().is_some_and(|checksum| checksum.len() > URL_MAX) {
            add("checksum", Err(format!("must have at most {URL_MAX} bytes")));
        }
        add("format", DiskLayout::wanted(spec.format.as_deref()).map(|_| ()));
        if spec.publish == Some(true) && !is_archive(spec.format.as_deref()) {
            add(
                "publish",
                Err("only an archive is published: give format oci or packages, or leave publish out".into()),
            );
        }
        faults
    }

    fn check_url(&self, text: &str) -> Result<(), String> {
        if text.len() > URL_MAX {
            return web_url(text).map(|_| ());
        }
        match Url::parse(text) {
            Ok(url) if url.scheme() == "file" => self.below(&url).map(|_| ()),
            Ok(url) if is_upload(&url) => match uploaded_file(text) {
                Some(_) => Ok(()),
                None => Err(format!("what is sent to the appliance is {UPLOAD_SCHEME}:FILE, a name without a path")),
            },
            _ => self.guard().url(&web_url(text)?).map_err(|refused| refused.to_string()),
        }
    }

    /// The folder of files, and where in it a file URL leads.
    fn below(&self, url: &Url) -> Result<(&Path, PathBuf), String> {
        let Some(folder) = &self.file_folder else {
            return Err("files are not read: image.file_folder in slipway.toml names no folder for them; send \
                        the file (`slipway image import NAME FILE`, without file://), or serve it by http:// or https://"
                .into());
        };
        let outside = || {
            let folder = folder.display();
            format!(
                "only files below image.file_folder, which is {folder}, are read: copy it there and name it as file://{folder}/NAME"
            )
        };
        let path = url.to_file_path().map_err(|()| "a file URL is file:///path".to_owned())?;
        let inner = path.strip_prefix(folder).map_err(|_| outside())?;
        let plain = inner.components().all(|part| matches!(part, Component::Normal(_)));
        if !plain || inner.as_os_str().is_empty() { Err(outside()) } else { Ok((folder, inner.to_owned())) }
    }

    /// Opens the file of a URL. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// When it is not below the folder, a symlink on the way, no regular file, or in the appliance's own folder.
    pub(super) fn open_file(&self, url: &Url, shown: &str) -> Result<File, ImportError> {
        let (folder, inner) = self.below(url).map_err(|reason| ImportError::lasting(format!("{shown}: {reason}")))?;
        let fail = |error: io::Error| ImportError::passing(format!("{shown} on the appliance: {error}"));
        let refuse = |reason: &str| ImportError::lasting(format!("{shown} on the appliance {reason}"));
        let own = self.data_dir.as_deref().and_then(|own| fs::metadata(own).ok()).map(|own| identity(&own));
        let is_own = |file: &File| Ok::<_, io::Error>(own == Some(identity(&file.metadata()?)));
        let mut at = File::open(folder).map_err(fail)?;
        let within = fs::canonicalize(folder).and_then(|folder| match &self.data_dir {
            Some(own) => Ok(folder.starts_with(fs::canonicalize(own)?)),
            None => Ok(false),
        });
        if within.map_err(fail)? {
            return Err(refuse("is in the appliance's own folder, data_dir, of which nothing is read"));
        }
        let names: Vec<&OsStr> = inner.iter().collect();
        for (number, name) in names.iter().enumerate() {
            let last = number + 1 == names.len();
            // A pipe or a device must not hold whoever opens it.
            let kind = if last { OFlags::NONBLOCK | OFlags::NOCTTY } else { OFlags::DIRECTORY };
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | kind;
            let link = || rustix::fs::statat(at.as_fd(), *name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
            let next = match openat(at.as_fd(), *name, flags, Mode::empty()) {
                Ok(next) => File::from(next),
                Err(Errno::LOOP | Errno::NOTDIR)
                    if link().is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink()) =>
                {
                    return Err(refuse("has a symlink on its way, which is not followed: name the file itself"));
                }
                Err(error) => return Err(fail(error.into())),
            };
            at = next;
            if is_own(&at).map_err(fail)? {
                return Err(refuse("is in the appliance's own folder, data_dir, of which nothing is read"));
            }
        }
        if !at.metadata().map_err(fail)?.is_file() {
            return Err(refuse("is not a regular file"));
        }
        Ok(at)
    }
}

/// Device and inode: the same under whichever name.
fn identity(meta: &fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (meta.dev(), meta.ino())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn hosts_have_images_from_the_network_only() {
        for (url, checksum, field) in [
            ("http://x/i", None, None),
            ("HTTPS://user:secret@x:8443/i?sig=1#x", Some("abc"), None),
            ("http://x/i", Some("https://x/sums"), None),
            ("file:///etc/passwd", None, Some("url")),
            ("file:///etc/passwd", Some("file:///x"), Some("url")),
            ("ftp://x/i", None, Some("url")),
            ("oci://x/i", None, Some("url")),
            ("http://", None, Some("url")),
            ("x", None, Some("url")),
            ("", None, Some("url")),
            ("http://x/i", Some("file:///x"), Some("checksum")),
            ("http://x/i", Some("gopher://x/sums"), Some("checksum")),
            ("slipway://debian-12", None, None),
            ("slipway://debian-12", Some("abc"), None),
            ("slipway://debian-12", Some("https://x/sums"), Some("checksum")),
            ("slipway://debian-12/..", None, Some("url")),
            ("slipway://../debian-12", None, Some("url")),
            ("slipway://", None, Some("url")),
            ("SLIPWAY://debian-12", None, Some("url")),
        ] {
            let fault = check_host_source(url, checksum).err();
            assert_eq!(fault.as_ref().map(|fault| fault.field), field, "{url} {checksum:?}");
            let told = |fault: &SourceFault| ["https://", "slipway://"].iter().any(|good| fault.detail.contains(good));
            assert!(fault.as_ref().is_none_or(told), "{url}: {fault:?}");
        }
    }

    #[test]
    fn faults_of_a_spec_name_field_and_remedy() {
        let spec = |url: &str, checksum: Option<&str>, format: Option<&str>| ImageSpec {
            url: url.into(),
            checksum: checksum.map(str::to_owned),
            format: format.map(str::to_owned),
            ..ImageSpec::default()
        };
        let none = Sources::default();
        let with = Sources {
            file_folder: Some("/srv/images".into()),
            allow: vec!["127.0.0.1:8000".parse().expect("an entry")].into(),
            ..Sources::default()
        };
        for (sources, spec, field, said) in [
            (&none, spec("http://x/i", None, None), "", ""),
            (&none, spec("http://x/i", Some("https://x/s"), Some("live-iso")), "", ""),
            (&none, spec("file:///srv/images/i", None, None), "url", "image.file_folder"),
            (&none, spec("http://x/i", Some("file:///srv/images/s"), None), "checksum", "image.file_folder"),
            (&none, spec("oci://x/i", None, None), "url", "http:// or https://"),
            (&none, spec("http://127.1:8000/i", None, None), "url", "image.allow"),
            (&none, spec("http://x/i", None, Some("vmdk")), "format", "qemu-img"),
            (&none, spec("http://x/i", None, Some("tar")), "format", "raw, qcow2 or live-iso"),
            (&none, spec("http://x/i", None, Some("oci")), "", ""),
            (&none, ImageSpec { publish: Some(true), ..spec("http://x/i", None, Some("packages")) }, "", ""),
            (
                &none,
                ImageSpec { publish: Some(true), ..spec("http://x/i", None, Some("raw")) },
                "publish",
                "oci or packages",
            ),
            (&none, ImageSpec { publish: Some(true), ..spec("http://x/i", None, None) }, "publish", "oci or packages"),
            (&none, ImageSpec { publish: Some(false), ..spec("http://x/i", None, None) }, "", ""),
            (&with, spec("http://127.0.0.1:8000/i", None, None), "", ""),
            (&with, spec("http://127.0.0.1:8001/i", None, None), "url", "image.allow"),
            (&with, spec("file:///srv/images/a/i.raw", Some("file:///srv/images/sums"), None), "", ""),
            (&with, spec("file:///srv/images", None, None), "url", "/srv/images"),
            (&with, spec("file:///srv/images2/i", None, None), "url", "/srv/images"),
            (&with, spec("file:///srv/images/../../etc/passwd", None, None), "url", "/srv/images"),
            (&with, spec("file:///srv/images/%2e%2e/%2e%2e/etc/passwd", None, None), "url", "/srv/images"),
            (&with, spec("file:///srv/images/..%2f..%2fetc/passwd", None, None), "url", "/srv/images"),
            (&with, spec("file://elsewhere/srv/images/i", None, None), "url", "file:///path"),
        ] {
            let faults = sources.faults(&spec);
            assert_eq!(faults.first().map_or("", |fault| fault.field), field, "{spec:?}: {faults:?}");
            assert!(faults.iter().all(|fault| fault.detail.contains(said)), "{spec:?}: {faults:?}");
        }
    }

    #[test]
    fn a_file_is_read_below_its_folder_only_and_by_no_link() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("images");
        let data = folder.join("data");
        fs::create_dir_all(folder.join("debian/12")).expect("made");
        fs::create_dir_all(data.join("pki")).expect("made");
        fs::write(folder.join("debian/12/i.raw"), "good").expect("written");
        fs::write(data.join("pki/ca.key"), "secret").expect("written");
        fs::write(root.path().join("secret"), "secret").expect("written");
        symlink(root.path().join("secret"), folder.join("link")).expect("linked");
        symlink(root.path(), folder.join("out")).expect("linked");
        symlink("debian", folder.join("stable")).expect("linked");
        nix::unistd::mkfifo(&folder.join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("made");
        let sources = |folder: &Path| Sources {
            file_folder: Some(folder.to_owned()),
            data_dir: Some(data.clone()),
            ..Sources::default()
        };
        let read = |sources: &Sources, path: &str| {
            let url = Url::parse(&format!("file://{}{path}", folder.display())).expect("a URL");
            sources.open_file(&url, "it").map(|file| io::read_to_string(file).expect("text"))
        };
        let good = sources(&folder);
        assert_eq!(read(&good, "/debian/12/i.raw").as_deref(), Ok("good"));
        for (path, said, retry) in [
            ("/link", "symlink", false),
            ("/out/secret", "symlink", false),
            ("/stable/12/i.raw", "symlink", false),
            ("/../secret", "image.file_folder", false),
            ("/data/pki/ca.key", "data_dir", false),
            ("/debian", "not a regular file", false),
            ("/pipe", "not a regular file", false),
            ("/debian/11/i.raw", "No such file", true),
            ("/debian/12/i.raw/x", "Not a directory", true),
        ] {
            let error = read(&good, path).expect_err(path);
            assert!(error.message.contains(said) && error.retry == retry, "{path}: {error:?}");
        }
        // A folder in the appliance's own one, under whichever name.
        symlink(data.join("pki"), root.path().join("keys")).expect("linked");
        let inside = sources(&root.path().join("keys"));
        let url = Url::parse(&format!("file://{}/keys/ca.key", root.path().display())).expect("a URL");
        let error = inside.open_file(&url, "it").expect_err("its own");
        assert!(error.message.contains("data_dir"), "{error:?}");
    }
}
