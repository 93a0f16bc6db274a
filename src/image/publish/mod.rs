//! Publishing: which archives are served without a login, and under which names.
//!
//! | file | idea |
//! |---|---|
//! | [`table`] | what is served now, as it is asked for |
//! | `settle` | who has a name, and what is too much |
//! | `keep` | keeps the table, and the statuses of Images, as the Images say |
//!
//! Nothing is served that an Image does not ask for (`spec.publish`), and of a container image only what the names of its own
//! repository lead to: a digest opens nothing that is not published. Who is served first keeps a name, also over a restart, for
//! the status of its Image says since when it is served.

mod keep;
mod settle;
pub mod table;

pub use keep::Publishing;
pub use table::{LibraryEntry, Published};

#[cfg(test)]
impl Published {
    /// As if Images of these names, whose digests these are, had been published in this order.
    pub(crate) fn of_tests(library: &crate::image::Library, images: &[(&str, &str)]) -> Self {
        let mut settling = settle::Settling::default();
        for (name, digest) in images {
            let manifest = library.manifest(digest).expect("it is there");
            let catalog = library.catalog(&manifest).expect("it reads").expect("an archive");
            let (rank, archive) = (settle::PublishRank::of_tests(), settle::PublishedArchive::new(manifest, catalog));
            assert_eq!(settling.add(name, &rank, &archive), settle::PublishVerdict::Published, "{name}");
        }
        let published = Self::default();
        published.set(Some(settling.table));
        published
    }

    /// As if nothing were published any more.
    pub(crate) fn forget(&self) {
        self.set(Some(table::PublishedTable::default()));
    }
}
