//! The catalog of an archive: what is in it, and where in the image.
//!
//! An archive is kept as any image is: its files one after the other, cut into chunks, each file from a chunk's start, so that the
//! same file in two archives is stored once. Behind them stands the catalog as JSON; the manifest says where it begins.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::{Deserialize, Serialize};

use super::super::Library;
use super::ArchiveFault;
use crate::api::slipway::ImageContent;
use crate::protocol::ImageManifest;

/// Longest catalog, in bytes: it is in memory while it is published.
pub(super) const CATALOG_MAX: usize = 16 << 20;
/// Most that the repositories of an archive have together: what several have counts for each.
pub(super) const REACH_MAX: usize = 1 << 17;
/// Contents that a status names, and bytes of their names.
const SHOWN: usize = 128;
const SHOWN_BYTES: usize = 16 << 10;

/// What is in an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Catalog {
    /// Container images.
    Oci {
        /// Everything that the tags lead to, by digest.
        blobs: BTreeMap<String, Blob>,
        /// What is pulled by which name.
        tags: Vec<Tag>,
    },
    /// Files for nodes.
    Packages {
        /// By path, without a leading slash.
        files: BTreeMap<String, ArchivedFile>,
    },
}

/// Where something is in the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchivedFile {
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// Of its content: lower-case hex.
    pub sha256: String,
}

/// Something of a container image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blob {
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// Of a manifest or an index; none of a config or a layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// What it names and the archive has: digests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
}

/// The name of a container image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Tag {
    /// The repository, without the registry.
    pub repository: String,
    /// None where it is pulled by its digest only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Of the manifest or index.
    pub digest: String,
}

impl Catalog {
    /// As it is kept.
    pub(in crate::image) fn to_bytes(&self) -> Result<Vec<u8>, ArchiveFault> {
        let bytes = serde_json::to_vec(self)
            .map_err(|error| ArchiveFault(format!("its catalog cannot be written: {error}")))?;
        if bytes.len() > CATALOG_MAX {
            return Err(ArchiveFault(format!("its names take more than {} MiB", CATALOG_MAX >> 20)));
        }
        self.check().map(|()| bytes)
    }

    fn check(&self) -> Result<(), ArchiveFault> {
        let reach: usize = self.repositories().values().map(BTreeSet::len).sum();
        if reach > REACH_MAX {
            return Err(ArchiveFault(format!(
                "its repositories have more than {REACH_MAX} blobs, those of several counted for each"
            )));
        }
        Ok(())
    }

    /// The digests that each repository leads to. What is in no repository's images is in none of them.
    pub fn repositories(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let Self::Oci { blobs, tags } = self else { return BTreeMap::new() };
        let mut repositories: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut counted = 0;
        for tag in tags {
            let reached = repositories.entry(&tag.repository).or_default();
            let mut open = vec![&*tag.digest];
            while let Some(digest) = open.pop() {
                let Some((digest, blob)) = blobs.get_key_value(digest) else { continue };
                if reached.insert(digest) {
                    counted += 1;
                    open.extend(blob.needs.iter().map(String::as_str));
                }
                // More is refused: it is not looked through.
                if counted > REACH_MAX {
                    return repositories;
                }
            }
        }
        repositories
    }

    /// Bytes that a digest leads to, each blob counted once.
    fn bytes_of(&self, digest: &str) -> u64 {
        let Self::Oci { blobs, .. } = self else { return 0 };
        let (mut seen, mut open, mut sum) = (BTreeSet::new(), vec![digest], 0_u64);
        while let Some(digest) = open.pop() {
            if let Some((digest, blob)) = blobs.get_key_value(digest)
                && seen.insert(digest)
            {
                sum = sum.saturating_add(blob.size);
                open.extend(blob.needs.iter().map(String::as_str));
            }
        }
        sum
    }

    /// What a status says of it: some of it, and how much it is.
    pub fn shown(&self) -> (Vec<ImageContent>, i64) {
        let number = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
        let (count, all): (usize, Box<dyn Iterator<Item = ImageContent> + '_>) = match self {
            Self::Oci { tags, .. } => {
                let content = |tag: &Tag| {
                    let end = tag.tag.as_ref().map_or_else(|| format!("@{}", tag.digest), |tag| format!(":{tag}"));
                    let name = format!("{}{end}", tag.repository);
                    ImageContent { name, digest: tag.digest.clone(), size: number(self.bytes_of(&tag.digest)) }
                };
                (tags.len(), Box::new(tags.iter().map(content)))
            }
            Self::Packages { files } => {
                let content = |(path, place): (&String, &ArchivedFile)| {
                    let digest = format!("sha256:{}", place.sha256);
                    ImageContent { name: path.clone(), digest, size: number(place.size) }
                };
                (files.len(), Box::new(files.iter().map(content)))
            }
        };
        let (mut shown, mut bytes) = (Vec::new(), 0);
        for content in all.take(SHOWN) {
            bytes += content.name.len();
            if bytes > SHOWN_BYTES {
                break;
            }
            shown.push(content);
        }
        (shown, number(count as u64))
    }
}

fn damaged(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

impl Library {
    /// The catalog of an archive; `None` of a disk. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// When it cannot be read; as [`io::ErrorKind::InvalidData`] when it is damaged.
    pub fn catalog(&self, manifest: &ImageManifest) -> io::Result<Option<Catalog>> {
        let Some(start) = manifest.catalog else { return Ok(None) };
        let length = manifest.virtual_size.saturating_sub(start);
        if length > CATALOG_MAX as u64 {
            return Err(damaged("the catalog of an archive is larger than one may be"));
        }
        let bytes = self.inner.part(&manifest.chunks, &(start..manifest.virtual_size))?;
        let catalog: Catalog = serde_json::from_slice(&bytes).map_err(damaged)?;
        let ends = |offset: u64, size: u64| offset.checked_add(size).is_some_and(|end| end <= start);
        let fits = match &catalog {
            Catalog::Oci { blobs, .. } => blobs.values().all(|blob| ends(blob.offset, blob.size)),
            Catalog::Packages { files } => files.values().all(|place| ends(place.offset, place.size)),
        };
        let not_in_it = || damaged("the catalog of an archive names what is not in it");
        fits.then_some(Some(catalog)).ok_or_else(not_in_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oci(blobs: &[(&str, u64, &[&str])], tags: &[(&str, &str)]) -> Catalog {
        let blob = |(digest, size, needs): &(&str, u64, &[&str])| {
            let needs = needs.iter().map(|need| (*need).to_owned()).collect();
            ((*digest).to_owned(), Blob { offset: 0, size: *size, media_type: None, needs })
        };
        let tag = |(repository, digest): &(&str, &str)| Tag {
            repository: (*repository).to_owned(),
            tag: Some("1".into()),
            digest: (*digest).to_owned(),
        };
        Catalog::Oci { blobs: blobs.iter().map(blob).collect(), tags: tags.iter().map(tag).collect() }
    }

    #[test]
    fn a_repository_has_what_its_own_images_name() {
        let catalog = oci(
            &[
                ("i", 1, &["m", "n", "gone"]),
                ("m", 2, &["c", "l"]),
                ("n", 4, &["d", "l"]),
                ("c", 8, &[]),
                ("d", 16, &[]),
                ("l", 32, &[]),
            ],
            &[("a", "i"), ("b", "m"), ("b", "m")],
        );
        let reached = |name: &str| catalog.repositories()[name].iter().copied().collect::<Vec<_>>();
        assert_eq!(reached("a"), ["c", "d", "i", "l", "m", "n"]);
        assert_eq!(reached("b"), ["c", "l", "m"]);
        let (shown, count) = catalog.shown();
        let sizes: Vec<_> = shown.iter().map(|content| (content.name.as_str(), content.size)).collect();
        assert_eq!((sizes, count), (vec![("a:1", 63), ("b:1", 42), ("b:1", 42)], 3));
        // A circle ends.
        assert_eq!(oci(&[("x", 1, &["y"]), ("y", 1, &["x"])], &[("a", "x")]).shown().0[0].size, 2);
    }

    #[test]
    fn repositories_that_have_too_much_together_are_refused() {
        let digests: Vec<String> = (0..1024).map(|number| format!("l{number}")).collect();
        let needs: Vec<&str> = digests.iter().map(String::as_str).collect();
        let names: Vec<String> = (0..200).map(|number| format!("r{number}")).collect();
        let mut blobs: Vec<(&str, u64, &[&str])> = needs.iter().map(|digest| (*digest, 1, &[][..])).collect();
        blobs.push(("m", 1, &needs));
        let tags = |most: usize| names[..most].iter().map(|name| (name.as_str(), "m")).collect::<Vec<_>>();
        assert!(oci(&blobs, &tags(100)).to_bytes().is_ok());
        let refused = oci(&blobs, &tags(200)).to_bytes().expect_err("too many");
        assert!(refused.to_string().contains("131072"), "{refused}");
    }

    #[test]
    fn a_status_shows_some_of_many_files() {
        let place = |size| ArchivedFile { offset: 0, size, sha256: "ab".into() };
        let files = |count: usize, name: usize| {
            let file = |number: usize| (format!("{}{number:05}", "d".repeat(name)), place(number as u64));
            Catalog::Packages { files: (0..count).map(file).collect() }
        };
        let (shown, count) = files(5000, 1).shown();
        assert_eq!((shown.len(), count, shown[1].name.as_str(), shown[1].size), (SHOWN, 5000, "d00001", 1));
        assert_eq!(shown[1].digest, "sha256:ab");
        assert_eq!(files(5000, 1019).shown().0.len(), 16);
    }
}
