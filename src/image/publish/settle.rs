//! Who has a name, of those that want to be published.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::table::{Found, Name, PublishedTable, Shelf};
use crate::image::archive::Catalog;
use crate::protocol::Manifest;

/// Most files, and blobs for each repository, of all that is published: some 200 bytes of memory for each.
const CONTENTS_MAX: usize = 1 << 18;
/// Most chunks of all that is published: 256 GiB.
const CHUNKS_MAX: usize = 1 << 18;

/// An archive of the library.
pub(super) struct Archive {
    pub manifest: Arc<Manifest>,
    pub catalog: Catalog,
}

/// When an Image comes in the line; the first goes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Those that are served already go before all others.
    pub is_new: bool,
    pub since: Option<Timestamp>,
    pub created: Option<Timestamp>,
    pub uid: String,
}

/// What becomes of an Image that wants to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Published,
    /// Another Image has the name for other content.
    Clash {
        name: String,
        by: String,
    },
    /// Too much is published already.
    Full,
}

/// What is published so far.
#[derive(Default)]
pub(super) struct Settling {
    pub table: PublishedTable,
    contents: usize,
    chunks: usize,
}

impl Settling {
    /// Publishes the archive of an Image, unless one that came before has a name of its.
    pub fn add(&mut self, image: &str, archive: &Archive) -> Verdict {
        let repositories = archive.catalog.repositories();
        let contents = match &archive.catalog {
            Catalog::Oci { .. } => repositories.values().map(std::collections::BTreeSet::len).sum(),
            Catalog::Packages { files } => files.len(),
        };
        let (contents, chunks) = (self.contents + contents, self.chunks + archive.manifest.chunks.len());
        if contents > CONTENTS_MAX || chunks > CHUNKS_MAX {
            return Verdict::Full;
        }
        let (blobs, tags) = match &archive.catalog {
            Catalog::Packages { files } => {
                let shelf = Shelf { manifest: archive.manifest.clone(), files: files.clone() };
                self.table.packages.insert(image.to_owned(), shelf);
                (self.contents, self.chunks) = (contents, chunks);
                return Verdict::Published;
            }
            Catalog::Oci { blobs, tags } => (blobs, tags),
        };
        for tag in tags {
            let Some(own) = &tag.tag else { continue };
            let known = self.table.repositories.get(&tag.repository).and_then(|there| there.tags.get(own));
            // The same content is nobody's loss.
            if let Some(known) = known.filter(|known| known.digest != tag.digest) {
                return Verdict::Clash { name: format!("{}:{own}", tag.repository), by: known.of.to_string() };
            }
        }
        (self.contents, self.chunks) = (contents, chunks);
        let of: Arc<str> = image.into();
        let mut kinds = HashMap::<&str, Arc<str>>::new();
        for (name, digests) in repositories {
            let repository = self.table.repositories.entry(name.to_owned()).or_default();
            for digest in digests {
                let Some(blob) = blobs.get(digest) else { continue };
                let media_type =
                    blob.media_type.as_deref().map(|kind| kinds.entry(kind).or_insert_with(|| kind.into()).clone());
                let found =
                    Found { manifest: archive.manifest.clone(), offset: blob.offset, size: blob.size, media_type };
                let there = repository.blobs.entry(digest.to_owned()).or_insert_with(|| found.clone());
                // One archive may know a blob as a manifest that another has as a layer only.
                if there.media_type.is_none() && found.media_type.is_some() {
                    *there = found;
                }
            }
        }
        for tag in tags {
            if let (Some(own), Some(repository)) = (&tag.tag, self.table.repositories.get_mut(&tag.repository)) {
                let name = Name { digest: tag.digest.clone(), of: of.clone() };
                repository.tags.entry(own.clone()).or_insert(name);
            }
        }
        Verdict::Published
    }
}

impl Verdict {
    /// What the status says of it.
    pub fn message(&self) -> Option<String> {
        match self {
            Self::Published => None,
            Self::Clash { name, by } => Some(format!(
                "not published: image {by} publishes {name} already, with other content; remove one of the two, or set its \
                 publish to false"
            )),
            Self::Full => Some(
                "not published: what is published already has as many files, blobs or bytes as may be; set publish of \
                 other images to false"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::archive::{ArchivedFile, Blob, Tag};

    fn archive(catalog: Catalog, chunks: usize) -> Archive {
        let chunk = crate::protocol::Chunk { offset: 0, length: 1, sha256: "0".repeat(64), stored: 1 };
        let manifest = Manifest { virtual_size: 1 << 40, chunks: vec![chunk; chunks], catalog: Some(0) };
        Archive { manifest: Arc::new(manifest), catalog }
    }

    /// `REPOSITORY:TAG=DIGEST`; of each digest a layer of the same name in capitals.
    fn oci(names: &[&str]) -> Archive {
        let mut blobs = std::collections::BTreeMap::new();
        let mut tags = Vec::new();
        for name in names {
            let (repository, rest) = name.split_once(':').expect("a name");
            let (tag, digest) = rest.split_once('=').expect("a digest");
            let blob = |media_type: Option<&str>, needs: Vec<String>| Blob {
                offset: 0,
                size: 1,
                media_type: media_type.map(str::to_owned),
                needs,
            };
            blobs.insert(digest.to_owned(), blob(Some("m"), vec![digest.to_uppercase()]));
            blobs.insert(digest.to_uppercase(), blob(None, Vec::new()));
            let tag = Some(tag.to_owned()).filter(|tag| !tag.is_empty());
            tags.push(Tag { repository: repository.to_owned(), tag, digest: digest.to_owned() });
        }
        archive(Catalog::Oci { blobs, tags }, 1)
    }

    fn packages(count: usize) -> Archive {
        let place = ArchivedFile { offset: 0, size: 1, sha256: String::new() };
        let files = (0..count).map(|number| (number.to_string(), place.clone())).collect();
        archive(Catalog::Packages { files }, 1)
    }

    #[test]
    fn who_came_first_has_a_name_and_the_other_is_told_by_whom() {
        let mut settling = Settling::default();
        let clash = |name: &str, by: &str| Verdict::Clash { name: name.into(), by: by.into() };
        for (image, names, verdict) in [
            ("a", &["pause:1=x", "etcd:3=y"][..], Verdict::Published),
            // Other tags, and the same content, take nothing from anybody.
            ("b", &["pause:2=z", "etcd:3=y"], Verdict::Published),
            // One name is enough for all of it.
            ("c", &["new:1=n", "pause:2=x"], clash("pause:2", "b")),
            ("d", &["etcd:3=x"], clash("etcd:3", "a")),
            // By digest only, nobody has anything else under the name.
            ("e", &["pause:=d"], Verdict::Published),
        ] {
            assert_eq!(settling.add(image, &oci(names)), verdict, "{image}");
            assert_eq!(verdict == Verdict::Published, verdict.message().is_none());
        }
        let table = settling.table;
        assert!(table.repository("new").is_none());
        let pause = table.repository("pause").expect("there");
        assert_eq!((pause.digest("1"), pause.digest("2"), pause.digest("3")), (Some("x"), Some("z"), None));
        assert_eq!(pause.tags_after("").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(pause.tags_after("1").collect::<Vec<_>>(), ["2"]);
        for (digest, there) in
            [("x", true), ("X", true), ("z", true), ("d", true), ("D", true), ("y", false), ("Y", false)]
        {
            assert_eq!(pause.blob(digest).is_some(), there, "{digest}");
        }
        assert!(pause.blob("x").is_some_and(|blob| blob.media_type.as_deref() == Some("m")));
        assert!(pause.blob("X").is_some_and(|blob| blob.media_type.is_none()));
    }

    #[test]
    fn what_is_published_in_all_is_bounded_and_what_is_refused_takes_nothing() {
        let mut settling = Settling::default();
        let most = CONTENTS_MAX / 16;
        for number in 0..15 {
            assert_eq!(settling.add(&number.to_string(), &packages(most)), Verdict::Published);
        }
        assert_eq!(settling.add("large", &packages(most + 1)), Verdict::Full);
        assert_eq!(settling.add("chunks", &archive(packages(1).catalog, CHUNKS_MAX)), Verdict::Full);
        assert_eq!(settling.add("last", &packages(most)), Verdict::Published);
        assert_eq!(settling.add("one", &packages(1)), Verdict::Full);
        assert_eq!(settling.table.names().count(), 16);
        assert!(
            settling.table.packages("last").is_some_and(|shelf| shelf.file("0").is_some() && shelf.file("x").is_none())
        );
    }

    #[test]
    fn those_that_are_served_go_before_those_that_were_made_before() {
        let at = |second| Some(Timestamp::from_second(second).expect("a time"));
        let rank = |since: Option<i64>, created, uid: &str| Rank {
            is_new: since.is_none(),
            since: since.and_then(at),
            created: at(created),
            uid: uid.into(),
        };
        let mut all =
            [rank(None, 1, "b"), rank(None, 1, "a"), rank(Some(9), 5, "c"), rank(Some(8), 7, "d"), rank(None, 0, "z")];
        all.sort();
        assert_eq!(all.map(|rank| rank.uid), ["d", "c", "z", "a", "b"]);
    }
}
