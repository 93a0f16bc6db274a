//! Who has a name, of those that want to be published.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;

use super::table::{LibraryEntry, PublishedTable, Shelf, TagEntry};
use crate::image::archive::{Blob, Catalog, Tag};
use crate::protocol::ImageManifest;

/// Most files, names of container images, and blobs for each repository, of all that is published: some 200 bytes of memory for each.
const CONTENTS_MAX: usize = 1 << 18;
/// Most chunks of all that is published: 256 GiB.
const CHUNKS_MAX: usize = 1 << 18;
/// Most bytes of all paths, repositories, tags and digests of what is published.
const NAMES_MAX: usize = 64 << 20;

/// An archive of the library, as far as it is published.
pub(super) struct PublishedArchive {
    content: PublishedContent,
    weight: Weight,
}

enum PublishedContent {
    Packages(Arc<Shelf>),
    Images {
        /// What each repository leads to, by digest.
        repositories: BTreeMap<String, Vec<(Arc<str>, LibraryEntry)>>,
        tags: Vec<Tag>,
    },
}

/// How much memory something takes in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Weight {
    contents: usize,
    chunks: usize,
    /// Bytes.
    names: usize,
}

impl PublishedArchive {
    /// Of a catalog: what its repositories do not lead to is left out.
    pub fn new(manifest: Arc<ImageManifest>, catalog: Catalog) -> Self {
        let content = match catalog {
            Catalog::Packages { files } => {
                PublishedContent::Packages(Arc::new(Shelf { manifest: manifest.clone(), files }))
            }
            Catalog::Oci { ref blobs, ref tags } => PublishedContent::Images {
                repositories: found(&manifest, catalog.repositories(), blobs),
                tags: tags.clone(),
            },
        };
        let weight = content.weight(manifest.chunks.len());
        Self { content, weight }
    }
}

impl PublishedContent {
    fn weight(&self, chunks: usize) -> Weight {
        let (contents, names) = match self {
            Self::Packages(shelf) => {
                let names = shelf.files.iter().map(|(path, file)| path.len() + file.sha256.len());
                (shelf.files.len(), names.sum())
            }
            Self::Images { repositories, tags } => {
                let of_blobs =
                    |blobs: &[(Arc<str>, LibraryEntry)]| blobs.iter().map(|(digest, _)| digest.len()).sum::<usize>();
                let of_tag =
                    |tag: &Tag| tag.repository.len() + tag.tag.as_ref().map_or(0, String::len) + tag.digest.len();
                let of_repositories = repositories.iter().map(|(name, blobs)| name.len() + of_blobs(blobs));
                let count = repositories.values().map(Vec::len).sum::<usize>() + tags.len();
                (count, of_repositories.chain(tags.iter().map(of_tag)).sum())
            }
        };
        Weight { contents, chunks, names }
    }
}

/// Where the blobs of repositories are.
fn found<'c>(
    manifest: &Arc<ImageManifest>,
    reached: BTreeMap<&'c str, BTreeSet<&'c str>>,
    blobs: &'c BTreeMap<String, Blob>,
) -> BTreeMap<String, Vec<(Arc<str>, LibraryEntry)>> {
    // Each text once, in however many repositories it is.
    let (mut kinds, mut names) = (HashMap::<&str, Arc<str>>::new(), HashMap::<&str, Arc<str>>::new());
    let mut find = |digest: &'c str| {
        let blob = blobs.get(digest)?;
        let media_type = blob.media_type.as_deref();
        let media_type = media_type.map(|kind| kinds.entry(kind).or_insert_with(|| kind.into()).clone());
        let name = names.entry(digest).or_insert_with(|| digest.into()).clone();
        Some((name, LibraryEntry { manifest: manifest.clone(), offset: blob.offset, size: blob.size, media_type }))
    };
    let mut repositories = BTreeMap::new();
    for (name, digests) in reached {
        repositories.insert(name.to_owned(), digests.into_iter().filter_map(&mut find).collect());
    }
    repositories
}

impl Weight {
    fn and(self, more: Self) -> Self {
        Self {
            contents: self.contents.saturating_add(more.contents),
            chunks: self.chunks.saturating_add(more.chunks),
            names: self.names.saturating_add(more.names),
        }
    }

    /// Of what there is more than may be.
    fn excess(self) -> Option<Excess> {
        [
            (self.contents > CONTENTS_MAX, Excess::Contents),
            (self.chunks > CHUNKS_MAX, Excess::Chunks),
            (self.names > NAMES_MAX, Excess::Names),
        ]
        .into_iter()
        .find_map(|(is_too_much, what)| is_too_much.then_some(what))
    }
}

/// What there would be too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excess {
    Contents,
    Chunks,
    Names,
}

/// When an Image comes in the line; the first goes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PublishRank {
    /// Those that are served already go before all others.
    pub is_new: bool,
    pub since: Option<Timestamp>,
    pub created: Option<Timestamp>,
    pub uid: String,
}

/// What becomes of an Image that wants to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PublishVerdict {
    Published,
    /// Another Image has the name for other content.
    Clash {
        name: String,
        by: String,
    },
    /// With it, too much would be published.
    Full(Excess),
    /// What it has in the library cannot be read at the moment; its place in the line is kept.
    Unread(String),
    /// What it had in the library is gone or damaged.
    Lost(String),
    /// One that is served cannot be read at the moment, and may have its names.
    Waits {
        before: String,
    },
}

/// What is published so far.
#[derive(Default)]
pub(super) struct Settling {
    pub table: PublishedTable,
    weight: Weight,
    /// An Image that is served, of which nobody knows at the moment what it has.
    unread: Option<String>,
}

impl Settling {
    /// Keeps the place of an Image that cannot be read at the moment.
    pub fn pass_over(&mut self, image: &str, rank: &PublishRank, reason: String) -> PublishVerdict {
        if !rank.is_new {
            self.unread.get_or_insert_with(|| image.to_owned());
        }
        PublishVerdict::Unread(reason)
    }

    /// Publishes the archive of an Image, unless one that came before has a name of its, or may have it.
    pub fn add(&mut self, image: &str, rank: &PublishRank, archive: &PublishedArchive) -> PublishVerdict {
        // Those that are served have no name of each other's.
        if let Some(before) = self.unread.clone().filter(|_| rank.is_new) {
            return PublishVerdict::Waits { before };
        }
        let weight = self.weight.and(archive.weight);
        if let Some(excess) = weight.excess() {
            return PublishVerdict::Full(excess);
        }
        match &archive.content {
            PublishedContent::Packages(shelf) => _ = self.table.packages.insert(image.to_owned(), shelf.clone()),
            PublishedContent::Images { repositories, tags } => {
                if let Some(clash) = self.clash(tags) {
                    return clash;
                }
                self.add_images(image, repositories, tags);
            }
        }
        self.weight = weight;
        PublishVerdict::Published
    }

    /// The first name that another Image has for other content: the same content is nobody's loss.
    fn clash(&self, tags: &[Tag]) -> Option<PublishVerdict> {
        tags.iter().find_map(|Tag { repository, tag, digest }| {
            let known = self.table.repositories.get(repository)?.tags.get(tag.as_ref()?)?;
            let name = || format!("{repository}:{}", tag.as_deref().unwrap_or_default());
            (known.digest != *digest).then(|| PublishVerdict::Clash { name: name(), by: known.of.to_string() })
        })
    }

    fn add_images(
        &mut self,
        image: &str,
        repositories: &BTreeMap<String, Vec<(Arc<str>, LibraryEntry)>>,
        tags: &[Tag],
    ) {
        let of: Arc<str> = image.into();
        for (name, blobs) in repositories {
            let repository = self.table.repositories.entry(name.clone()).or_default();
            for (digest, found) in blobs {
                let there = repository.blobs.entry(digest.clone()).or_insert_with(|| found.clone());
                // One archive may know a blob as a manifest that another has as a layer only.
                if there.media_type.is_none() && found.media_type.is_some() {
                    *there = found.clone();
                }
            }
        }
        for tag in tags {
            if let (Some(own), Some(repository)) = (&tag.tag, self.table.repositories.get_mut(&tag.repository)) {
                let name = TagEntry { digest: tag.digest.clone(), of: of.clone() };
                repository.tags.entry(own.clone()).or_insert(name);
            }
        }
    }
}

/// How every message begins that is written here.
pub(super) const NOT_PUBLISHED: &str = "not published: ";

impl PublishVerdict {
    /// What the status says of it.
    pub fn message(&self) -> Option<String> {
        let reason = match self {
            Self::Published => return None,
            Self::Clash { name, by } => format!(
                "image {by} publishes {name} already, with other content; remove one of the two, or set its publish to false"
            ),
            Self::Full(excess) => {
                let most = match excess {
                    Excess::Contents => format!("{CONTENTS_MAX} files, blobs and names"),
                    Excess::Chunks => format!("{} GiB", CHUNKS_MAX >> 10),
                    Excess::Names => format!("{} MiB of paths, names and digests", NAMES_MAX >> 20),
                };
                format!(
                    "with it, all that is published would have more than {most}, which is all that may be; set publish of \
                     other images to false"
                )
            }
            Self::Unread(reason) => {
                format!("what it has in the library cannot be read at the moment: {reason}; trying again")
            }
            Self::Lost(reason) => format!("what it had in the library is gone or damaged: {reason}; import it again"),
            Self::Waits { before } => {
                format!("image {before}, which goes before it, cannot be read at the moment, and may have its names")
            }
        };
        Some(format!("{NOT_PUBLISHED}{reason}"))
    }
}

#[cfg(test)]
impl PublishRank {
    /// Of one that is new.
    pub fn of_tests() -> Self {
        Self { is_new: true, since: None, created: None, uid: String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::archive::ArchivedFile;

    fn archive(catalog: Catalog, chunks: usize) -> PublishedArchive {
        let chunk = crate::protocol::Chunk { offset: 0, length: 1, sha256: "0".repeat(64), stored: 1 };
        let manifest = ImageManifest { virtual_size: 1 << 40, chunks: vec![chunk; chunks], catalog: Some(0) };
        PublishedArchive::new(Arc::new(manifest), catalog)
    }

    /// `REPOSITORY:TAG=DIGEST`; of each digest a layer of the same name in capitals.
    fn oci(names: &[&str]) -> PublishedArchive {
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

    fn new() -> PublishRank {
        PublishRank::of_tests()
    }

    fn packages(count: usize, chunks: usize) -> PublishedArchive {
        let place = ArchivedFile { offset: 0, size: 1, sha256: String::new() };
        let files = (0..count).map(|number| (number.to_string(), place.clone())).collect();
        archive(Catalog::Packages { files }, chunks)
    }

    #[test]
    fn who_came_first_has_a_name_and_the_other_is_told_by_whom() {
        let mut settling = Settling::default();
        let clash = |name: &str, by: &str| PublishVerdict::Clash { name: name.into(), by: by.into() };
        for (image, names, verdict) in [
            ("a", &["pause:1=x", "etcd:3=y"][..], PublishVerdict::Published),
            // Other tags, and the same content, take nothing from anybody.
            ("b", &["pause:2=z", "etcd:3=y"], PublishVerdict::Published),
            // One name is enough for all of it.
            ("c", &["new:1=n", "pause:2=x"], clash("pause:2", "b")),
            ("d", &["etcd:3=x"], clash("etcd:3", "a")),
            // By digest only, nobody has anything else under the name.
            ("e", &["pause:=d"], PublishVerdict::Published),
        ] {
            assert_eq!(settling.add(image, &new(), &oci(names)), verdict, "{image}");
            assert_eq!(verdict == PublishVerdict::Published, verdict.message().is_none());
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
            assert_eq!(settling.add(&number.to_string(), &new(), &packages(most, 1)), PublishVerdict::Published);
        }
        assert_eq!(settling.add("large", &new(), &packages(most + 1, 1)), PublishVerdict::Full(Excess::Contents));
        assert_eq!(settling.add("chunks", &new(), &packages(1, CHUNKS_MAX)), PublishVerdict::Full(Excess::Chunks));
        assert_eq!(settling.add("last", &new(), &packages(most, 1)), PublishVerdict::Published);
        assert_eq!(settling.add("one", &new(), &packages(1, 1)), PublishVerdict::Full(Excess::Contents));
        assert_eq!(settling.add("images", &new(), &oci(&["a:1=x"])), PublishVerdict::Full(Excess::Contents));
        assert_eq!(settling.table.names_after("").count(), 16);
        assert!(
            settling.table.packages("last").is_some_and(|shelf| shelf.file("0").is_some() && shelf.file("x").is_none())
        );
    }

    #[test]
    fn names_have_a_bound_in_bytes_however_few_they_are() {
        let long = |count: usize, length: usize| {
            let place = ArchivedFile { offset: 0, size: 1, sha256: "a".repeat(64) };
            let name = |number: usize| format!("{number:0length$}");
            archive(Catalog::Packages { files: (0..count).map(|number| (name(number), place.clone())).collect() }, 1)
        };
        let mut settling = Settling::default();
        // Of 576 bytes each, 116508 are 64 MiB.
        for number in 0..7 {
            assert_eq!(
                settling.add(&number.to_string(), &new(), &long(1 << 14, 512)),
                PublishVerdict::Published,
                "{number}"
            );
        }
        let refused = settling.add("more", &new(), &long(1 << 14, 512));
        assert_eq!(refused, PublishVerdict::Full(Excess::Names));
        assert!(refused.message().is_some_and(|message| message.contains("64 MiB of paths, names and digests")));
        assert_eq!(settling.add("few", &new(), &long(1000, 100)), PublishVerdict::Published);
        // A table that is made anew has the same files, not others.
        let shelf = long(10, 10);
        let tables = [(); 2].map(|()| {
            let mut settling = Settling::default();
            settling.add("i", &new(), &shelf);
            settling.table
        });
        let [one, two] = tables.each_ref().map(|table| table.packages("i").expect("there"));
        assert!(Arc::ptr_eq(one, two));
    }

    #[test]
    fn names_of_images_count_also_where_they_stand_for_the_same() {
        let names: Vec<String> = (0..5000).map(|number| format!("a:{number}=x")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut settling = Settling::default();
        let published = (0..60)
            .filter(|number| settling.add(&number.to_string(), &new(), &oci(&names)) == PublishVerdict::Published);
        assert_eq!(published.count(), CONTENTS_MAX / 5002);
    }

    #[test]
    fn who_is_new_waits_while_one_that_is_served_cannot_be_read() {
        let served = PublishRank { is_new: false, ..new() };
        let reason = || "the disk".to_owned();
        let mut settling = Settling::default();
        // Of one that is new itself nobody has lost anything.
        assert_eq!(settling.pass_over("unread too", &new(), reason()), PublishVerdict::Unread(reason()));
        assert_eq!(settling.add("a", &new(), &oci(&["a:1=x"])), PublishVerdict::Published);
        assert_eq!(settling.pass_over("unread", &served, reason()), PublishVerdict::Unread(reason()));
        assert_eq!(settling.add("b", &served, &oci(&["b:1=x"])), PublishVerdict::Published);
        let waits = PublishVerdict::Waits { before: "unread".into() };
        assert_eq!(settling.add("c", &new(), &oci(&["c:1=x"])), waits);
        assert_eq!(settling.add("d", &new(), &packages(1, 1)), waits);
        for verdict in [
            waits,
            PublishVerdict::Unread(reason()),
            PublishVerdict::Lost(reason()),
            PublishVerdict::Full(Excess::Chunks),
        ] {
            assert!(verdict.message().is_some_and(|message| message.starts_with(NOT_PUBLISHED)), "{verdict:?}");
        }
    }

    #[test]
    fn those_that_are_served_go_before_those_that_were_made_before() {
        let at = |second| Some(Timestamp::from_second(second).expect("a time"));
        let rank = |since: Option<i64>, created, uid: &str| PublishRank {
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
