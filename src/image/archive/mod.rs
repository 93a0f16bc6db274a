//! Archives: container images and packages for nodes, as they come in a tar file.
//!
//! | file | idea |
//! |---|---|
//! | `entries` | a hostile tar file, read once from its start: files into chunks, and what else is in it |
//! | `names` | repositories, tags, digests and references |
//! | `oci` | the graph of an OCI image layout, from its index down |
//! | `docker` | what `docker save` wrote before it wrote that layout |
//! | `catalog` | what is in an archive, as it is kept |
//!
//! Nothing of an archive becomes a path on the disk: names are keys of the catalog, content is chunks. So there is nothing to
//! escape from; names are judged all the same, because they become paths of URLs, and somebody else's disk may get them.

mod catalog;
mod docker;
mod entries;
mod names;
mod oci;

use std::collections::BTreeMap;

pub use catalog::{ArchivedFile, Blob, Catalog, Tag};
pub(super) use entries::{ArchiveError, ArchiveMember, ArchiveMembers, ArchiveReader};
pub use names::{is_repository, is_tag, sha256_of};

use super::ImportError;

/// What is wrong with an archive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct ArchiveFault(pub(super) String);

/// Why what is in an archive cannot be kept.
#[derive(Debug)]
pub(super) enum Unkept {
    /// The archive itself.
    Fault(ArchiveFault),
    /// What was stored of it cannot be read again.
    Unread(ImportError),
}

impl From<ArchiveFault> for Unkept {
    fn from(fault: ArchiveFault) -> Self {
        Self::Fault(fault)
    }
}

/// Reads a file of an archive that was stored.
pub(super) type ReadBack<'a> = dyn Fn(&ArchiveMember) -> Result<Vec<u8>, ImportError> + 'a;

/// The catalog of an archive.
pub(super) struct Catalogued {
    pub(super) catalog: Catalog,
    /// What is to be stored behind its files, in this order: the catalog counts with it.
    pub(super) made: Vec<Vec<u8>>,
}

/// Of files for nodes.
pub(super) fn packages(members: &ArchiveMembers) -> Result<Catalogued, ArchiveFault> {
    let files: BTreeMap<String, ArchivedFile> =
        members.files.iter().map(|(path, file)| (path.clone(), file.place())).collect();
    if files.is_empty() {
        return Err(ArchiveFault("there is no file in it".into()));
    }
    Ok(Catalogued { catalog: Catalog::Packages { files }, made: Vec::new() })
}

/// Of container images, in whichever of the two layouts.
pub(super) fn images(members: &ArchiveMembers, read: &ReadBack<'_>) -> Result<Catalogued, Unkept> {
    if members.files.contains_key(oci::INDEX) {
        return oci::catalogue(members, read);
    }
    if members.files.contains_key(docker::MANIFEST) {
        return docker::catalogue(members, read);
    }
    Err(ArchiveFault(
        "it has neither an index.json, as an OCI image layout has, nor a manifest.json, as docker save writes it"
            .into(),
    )
    .into())
}

/// Text of an archive, as a message repeats it.
fn shown(text: &str) -> String {
    const MOST: usize = 100;
    let mut shown: String = text.chars().take(MOST).flat_map(char::escape_default).collect();
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}
