//! Where the files of a channel come from: a folder, a bundle, or a URL. Nothing outside of it is read.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::Url;
use reqwest::redirect::Policy;

use crate::files;
use crate::outbound::masked;
use crate::release::catalogue::channel::{INDEX, INDEX_MAX, RELEASE_MAX};

/// How long a file may take to come.
const FETCH_DEADLINE: Duration = Duration::from_secs(60);
/// Longest bundle, in bytes: all that it has is in memory.
const BUNDLE_MAX: u64 = 128 << 20;
/// Entries of a bundle.
const ENTRIES_MAX: usize = 4096;

/// A channel that is read.
pub(super) enum Source {
    Folder(PathBuf),
    /// Files by their paths.
    Bundle(BTreeMap<String, Vec<u8>>),
    Web {
        client: reqwest::Client,
        /// Ends with a slash.
        base: Url,
    },
}

impl Source {
    pub(super) fn open(name: &str) -> anyhow::Result<Self> {
        if name.contains("://") {
            return web(name);
        }
        let path = Path::new(name);
        let about = fs::metadata(path).with_context(|| name.to_owned())?;
        if about.is_dir() {
            return Ok(Self::Folder(path.canonicalize().with_context(|| name.to_owned())?));
        }
        let archive = files::read(path, BUNDLE_MAX).with_context(|| name.to_owned())?;
        Ok(Self::Bundle(bundle(&archive).with_context(|| name.to_owned())?))
    }

    /// The index.
    pub(super) async fn index(&self) -> anyhow::Result<Vec<u8>> {
        self.read(INDEX, INDEX_MAX).await
    }

    /// A release, by a path that the index has.
    pub(super) async fn release(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        self.read(path, RELEASE_MAX).await
    }

    async fn read(&self, path: &str, most: u64) -> anyhow::Result<Vec<u8>> {
        match self {
            Self::Folder(folder) => {
                let file = folder.join(path);
                let real = file.canonicalize().with_context(|| file.display().to_string())?;
                if !real.starts_with(folder) {
                    bail!("{} leads out of the channel by a link", file.display());
                }
                files::read(&real, most).with_context(|| file.display().to_string())
            }
            Self::Bundle(files) => {
                let content = files.get(path).with_context(|| format!("{path} is not in the bundle"))?;
                if content.len() as u64 > most {
                    bail!("{path} has more than {most} bytes");
                }
                Ok(content.clone())
            }
            Self::Web { client, base } => {
                let url = base.join(path).with_context(|| path.to_owned())?;
                if !url.as_str().starts_with(base.as_str()) {
                    bail!("{path} leads out of the channel");
                }
                fetch(client, url.clone(), most).await.with_context(|| masked(url.as_str()))
            }
        }
    }
}

fn web(name: &str) -> anyhow::Result<Source> {
    let shown = masked(name);
    let mut base = Url::parse(name).with_context(|| shown.clone())?;
    if !["http", "https"].contains(&base.scheme()) {
        bail!("{shown}: a channel is a folder, a bundle, or a URL of http or https");
    }
    if base.query().is_some() || base.fragment().is_some() {
        bail!("{shown}: the URL of a channel has no query");
    }
    let path = base.path().strip_suffix(INDEX).unwrap_or(base.path()).trim_end_matches('/').to_owned() + "/";
    base.set_path(&path);
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    // What is read is what was named: nothing leads elsewhere.
    let client = reqwest::Client::builder().tls_backend_preconfigured(tls).redirect(Policy::none());
    Ok(Source::Web { client: client.timeout(FETCH_DEADLINE).build()?, base })
}

async fn fetch(client: &reqwest::Client, url: Url, most: u64) -> anyhow::Result<Vec<u8>> {
    let mut answer = client.get(url).send().await.map_err(reqwest::Error::without_url)?;
    let status = answer.status();
    if status.is_redirection() {
        bail!("the server redirects to another place: name that one");
    }
    if !status.is_success() {
        bail!("{status}");
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(reqwest::Error::without_url)? {
        body.extend_from_slice(&chunk);
        if body.len() as u64 > most {
            bail!("more than {most} bytes");
        }
    }
    Ok(body)
}

/// The files of a tar archive. What is no file or folder is in no channel.
fn bundle(archive: &[u8]) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut all = BTreeMap::new();
    let no_tar = "is no tar file (a compressed one must be unpacked first)";
    for (count, entry) in tar::Archive::new(archive).entries().context(no_tar)?.enumerate() {
        if count >= ENTRIES_MAX {
            bail!("has more than {ENTRIES_MAX} entries");
        }
        let mut entry = entry.context(no_tar)?;
        let path = entry.path().context(no_tar)?.into_owned();
        let kind = entry.header().entry_type();
        if kind.is_dir() || kind.is_pax_global_extensions() {
            continue;
        }
        let plain = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !kind.is_file() || !plain {
            bail!("{}: a bundle has files and folders only, below its own", path.display());
        }
        let path: PathBuf = path.components().filter(|part| *part != Component::CurDir).collect();
        let mut content = Vec::new();
        entry.by_ref().take(RELEASE_MAX + 1).read_to_end(&mut content).context(no_tar)?;
        if all.insert(path.to_string_lossy().into_owned(), content).is_some() {
            bail!("{} is in it twice", path.display());
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(entries: &[(&str, tar::EntryType, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            // As an attacker writes it: the library would refuse some of these paths.
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            if *kind == tar::EntryType::Symlink {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn a_bundle_has_files_of_its_own_only() {
        use tar::EntryType::{Directory, Regular, Symlink};
        let read =
            bundle(&archive(&[("./", Directory, ""), ("./a/b.yaml", Regular, "x"), ("c", Regular, "y")])).unwrap();
        assert_eq!(read.keys().collect::<Vec<_>>(), ["a/b.yaml", "c"]);
        for (entries, said) in [
            (vec![("../a", Regular, "x")], "below its own"),
            (vec![("/etc/a", Regular, "x")], "below its own"),
            (vec![("a", Symlink, "")], "files and folders only"),
            (vec![("a", Regular, "x"), ("./a", Regular, "y")], "twice"),
        ] {
            let refused = format!("{:#}", bundle(&archive(&entries)).unwrap_err());
            assert!(refused.contains(said), "{entries:?}: {refused}");
        }
        assert!(bundle(b"no tar at all, but some hundred bytes of something else".repeat(20).as_slice()).is_err());
    }

    #[tokio::test]
    async fn a_folder_is_not_left_by_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let channel = folder.path().join("channel");
        fs::create_dir(&channel).unwrap();
        fs::write(folder.path().join("secret"), "s").unwrap();
        fs::write(channel.join("inside"), "i").unwrap();
        std::os::unix::fs::symlink("../secret", channel.join("out")).unwrap();
        std::os::unix::fs::symlink("inside", channel.join("in")).unwrap();
        let source = Source::open(channel.to_str().unwrap()).unwrap();
        assert_eq!(source.release("in").await.unwrap(), b"i");
        let refused = source.release("out").await.unwrap_err().to_string();
        assert!(refused.contains("leads out of the channel"), "{refused}");
        assert!(source.index().await.is_err());
    }

    #[test]
    fn a_url_is_a_folder() {
        crate::appliance::install_tls_provider();
        for (name, wanted) in [
            ("https://x/channel", "https://x/channel/"),
            ("https://x/channel/", "https://x/channel/"),
            ("http://x/channel/index.yaml", "http://x/channel/"),
            ("http://x", "http://x/"),
        ] {
            let Ok(Source::Web { base, .. }) = Source::open(name) else { panic!("{name}") };
            assert_eq!(base.as_str(), wanted);
        }
        for name in ["ftp://x/", "https://x/?token=1", "file:///etc"] {
            assert!(Source::open(name).is_err(), "{name}");
        }
    }
}
