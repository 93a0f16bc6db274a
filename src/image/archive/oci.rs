//! An OCI image layout: from `index.json` down to what its images need.
//!
//! Everything that the index leads to and the archive has is kept, of all platforms, byte for byte: so digests hold, whoever pins
//! them. A manifest's config and layers must all be there; of an index, manifests may be missing, as of platforms that were left
//! out. Each blob must hash to its name, and have the size that is said of it. What nothing leads to is not kept.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Deserialize;

use super::catalog::{Blob, Catalog, REACH_MAX, Tag};
use super::entries::{ArchiveMember, ArchiveMembers};
use super::names::{RepositoryReference, is_tag, reference, sha256_of};
use super::{ArchiveFault, Catalogued, ReadBack, Unkept, docker, shown};
use crate::api::bounded::optional_list;

/// Where a layout begins.
pub(super) const INDEX: &str = "index.json";
const BLOBS: &str = "blobs/sha256/";
/// Largest manifest, in bytes, as the distribution specification has it.
pub(super) const MANIFEST_MAX: u64 = 4 << 20;
/// Most manifests and indexes, names, and descriptors of one of them.
const MANIFESTS_MAX: usize = 4096;
pub(super) const NAMES_MAX: usize = 4096;
const DESCRIPTORS_MAX: usize = 4096;
/// Bytes of all manifests and indexes.
const MANIFESTS_BYTES_MAX: u64 = 64 << 20;
/// Indexes within each other.
const DEPTH_MAX: usize = 4;

const INDEXES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
const MANIFESTS: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];

/// What names something else.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: OciAnnotations,
}

/// Whole names of images: containerd's, which BuildKit and Docker write too, and the specification's, which may be a tag only.
#[derive(Default, Deserialize)]
struct OciAnnotations {
    #[serde(rename = "io.containerd.image.name")]
    name: Option<String>,
    #[serde(rename = "org.opencontainers.image.ref.name")]
    ref_name: Option<String>,
}

/// A manifest or an index; which of them, its fields say.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OciDocument {
    media_type: Option<String>,
    #[serde(default, deserialize_with = "optional_list::<_, _, DESCRIPTORS_MAX>")]
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    #[serde(default, deserialize_with = "optional_list::<_, _, DESCRIPTORS_MAX>")]
    layers: Option<Vec<Descriptor>>,
}

fn document(bytes: &[u8], name: &str) -> Result<OciDocument, ArchiveFault> {
    let parsed: OciDocument =
        serde_json::from_slice(bytes).map_err(|error| ArchiveFault(format!("{name} is no manifest: {error}")))?;
    let count = [&parsed.manifests, &parsed.layers].into_iter().flatten().map(Vec::len).sum::<usize>();
    if count > DESCRIPTORS_MAX {
        return Err(ArchiveFault(format!("{name} names more than {DESCRIPTORS_MAX} others")));
    }
    Ok(parsed)
}

/// What an image layout has.
pub(super) fn catalogue(members: &ArchiveMembers, read: &ReadBack<'_>) -> Result<Catalogued, Unkept> {
    let index = members.files.get(INDEX).ok_or_else(|| ArchiveFault(format!("it has no {INDEX}")))?;
    let mut walk = OciWalk { members, read, blobs: BTreeMap::new(), manifests: 0, bytes: 0, named: 0 };
    let top = document(&walk.text(index, INDEX)?, INDEX)?;
    let mut tags = BTreeSet::new();
    let mut unnamed = BTreeSet::new();
    for root in top.manifests.unwrap_or_default() {
        walk.descend(&root, 0)?;
        match named(&root.annotations)? {
            Some(RepositoryReference { repository, tag }) => {
                _ = tags.insert(Tag { repository, tag, digest: root.digest })
            }
            None => _ = unnamed.insert(root.digest),
        }
    }
    if !unnamed.is_empty() {
        tags.extend(named_beside(&walk, unnamed, docker::names(members, read)?)?);
    }
    let tags = judged(tags)?;
    Ok(Catalogued { catalog: Catalog::Oci { blobs: walk.blobs, tags }, made: Vec::new() })
}

/// What Docker writes beside the layout has the names that the layout lacks, by the configs of images.
fn named_beside(
    walk: &OciWalk<'_>,
    unnamed: BTreeSet<String>,
    beside: Vec<(String, Vec<RepositoryReference>)>,
) -> Result<BTreeSet<Tag>, ArchiveFault> {
    let mut by_config = HashMap::<String, Vec<RepositoryReference>>::new();
    for (config, names) in beside {
        by_config.entry(config).or_default().extend(names);
    }
    let (mut tags, mut looked_at) = (BTreeSet::new(), 0);
    for digest in unnamed {
        let reached = walk.reached(&digest);
        // Each may lead to all that the others lead to, and a config may have all names.
        looked_at += reached.len();
        if looked_at > REACH_MAX {
            return Err(ArchiveFault(format!(
                "its images without a name lead to more than {REACH_MAX} blobs, those of several counted for each"
            )));
        }
        let names = reached.iter().filter_map(|config| by_config.get(*config)).flatten();
        let mut is_named = false;
        for RepositoryReference { repository, tag } in names.cloned() {
            is_named = true;
            tags.insert(Tag { repository, tag, digest: digest.clone() });
            few(&tags)?;
        }
        if !is_named {
            return Err(ArchiveFault(format!(
                "the image {} has no name in it: write one when it is made, as skopeo copy SOURCE oci-archive:FILE:REPOSITORY:TAG does",
                shown(&digest)
            )));
        }
    }
    Ok(tags)
}

fn few(tags: &BTreeSet<Tag>) -> Result<(), ArchiveFault> {
    if tags.len() > NAMES_MAX { Err(ArchiveFault(format!("it has more than {NAMES_MAX} names"))) } else { Ok(()) }
}

/// Names of which each stands for one image.
pub(super) fn judged(tags: BTreeSet<Tag>) -> Result<Vec<Tag>, ArchiveFault> {
    if tags.is_empty() {
        return Err(ArchiveFault("there is no image in it".into()));
    }
    few(&tags)?;
    let tags: Vec<Tag> = tags.into_iter().collect();
    let twice = tags.windows(2).find_map(|pair| match pair {
        [a, b] if a.tag.is_some() && (&a.repository, &a.tag) == (&b.repository, &b.tag) => Some(a),
        _ => None,
    });
    match twice {
        Some(Tag { repository, tag, .. }) => Err(ArchiveFault(format!(
            "{repository}:{} stands for two images in it: nodes ask for names without their registry",
            tag.as_deref().unwrap_or_default()
        ))),
        None => Ok(tags),
    }
}

/// The name that annotations give.
fn named(OciAnnotations { name, ref_name }: &OciAnnotations) -> Result<Option<RepositoryReference>, ArchiveFault> {
    // A word alone is a tag.
    let other = ref_name.as_ref().filter(|name| !is_tag(name));
    let Some(text) = name.as_ref().or(other) else { return Ok(None) };
    let unread = || ArchiveFault(format!("{} is no name of an image", shown(text)));
    reference(text).map(Some).ok_or_else(unread)
}

struct OciWalk<'a> {
    members: &'a ArchiveMembers,
    read: &'a ReadBack<'a>,
    blobs: BTreeMap<String, Blob>,
    manifests: usize,
    /// Bytes of these.
    bytes: u64,
    /// What they name, each time counted.
    named: usize,
}

impl OciWalk<'_> {
    fn text(&self, member: &ArchiveMember, name: &str) -> Result<Vec<u8>, Unkept> {
        if member.size > MANIFEST_MAX {
            return Err(ArchiveFault(format!("{name} has more than {} MiB", MANIFEST_MAX >> 20)).into());
        }
        (self.read)(member).map_err(Unkept::Unread)
    }

    /// What a descriptor names, if the archive has it.
    fn find(&self, of: &Descriptor) -> Result<Option<&ArchiveMember>, ArchiveFault> {
        let Some(hex) = sha256_of(&of.digest) else {
            return Err(ArchiveFault(format!(
                "{} is no digest by SHA-256, and no others are taken",
                shown(&of.digest)
            )));
        };
        let Some(member) = self.members.files.get(&format!("{BLOBS}{hex}")) else { return Ok(None) };
        if member.sha256 != hex {
            return Err(ArchiveFault(format!(
                "the blob {} is another one: its SHA-256 is {}",
                of.digest, member.sha256
            )));
        }
        if member.size != of.size {
            return Err(ArchiveFault(format!(
                "the blob {} has {} bytes, and {} are said of it",
                of.digest, member.size, of.size
            )));
        }
        Ok(Some(member))
    }

    fn missing(of: &Descriptor) -> ArchiveFault {
        ArchiveFault(format!("the blob {} is named and not in it", of.digest))
    }

    /// Keeps what a descriptor of a manifest or an index leads to.
    fn descend(&mut self, of: &Descriptor, depth: usize) -> Result<(), Unkept> {
        let is_index = INDEXES.contains(&of.media_type.as_str());
        if !is_index && !MANIFESTS.contains(&of.media_type.as_str()) {
            return Err(ArchiveFault(format!(
                "{} is of the kind {}, which is no image",
                shown(&of.digest),
                shown(&of.media_type)
            ))
            .into());
        }
        if depth > DEPTH_MAX {
            return Err(ArchiveFault(format!("its indexes are more than {DEPTH_MAX} within each other")).into());
        }
        let member = self.find(of)?.ok_or_else(|| Self::missing(of))?.clone();
        if let Some(known) = self.blobs.get(&of.digest) {
            return if known.media_type.as_deref() == Some(&of.media_type) {
                Ok(())
            } else {
                Err(ArchiveFault(format!("{} is named as two kinds of things", of.digest)).into())
            };
        }
        self.manifests += 1;
        self.bytes = self.bytes.saturating_add(member.size);
        if self.manifests > MANIFESTS_MAX || self.bytes > MANIFESTS_BYTES_MAX {
            let most = MANIFESTS_BYTES_MAX >> 20;
            return Err(ArchiveFault(format!(
                "it has more than {MANIFESTS_MAX} manifests, or more than {most} MiB of them"
            ))
            .into());
        }
        let said = document(&self.text(&member, &of.digest)?, &of.digest)?;
        // One that could be read as either would be two things to two readers.
        let either = said.manifests.is_some() && (said.layers.is_some() || said.config.is_some());
        if either || said.media_type.as_deref().is_some_and(|own| own != of.media_type) {
            return Err(ArchiveFault(format!(
                "{} is named as one kind of thing, and says that it is another",
                of.digest
            ))
            .into());
        }
        let mut needs = BTreeSet::new();
        // Before what it leads to, so that a circle ends.
        let media_type = Some(of.media_type.clone());
        let blob = Blob { offset: member.offset, size: member.size, media_type, needs: Vec::new() };
        self.blobs.insert(of.digest.clone(), blob);
        if is_index {
            let children = said.manifests.unwrap_or_default();
            for child in &children {
                if self.find(child)?.is_some() {
                    self.descend(child, depth + 1)?;
                    needs.insert(child.digest.clone());
                }
            }
            if needs.is_empty() {
                return Err(ArchiveFault(format!("of what the index {} names, nothing is in it", of.digest)).into());
            }
        } else {
            let Some(config) = &said.config else {
                return Err(ArchiveFault(format!("the manifest {} names no config", of.digest)).into());
            };
            for part in [config].into_iter().chain(said.layers.iter().flatten()) {
                self.keep(part)?;
                needs.insert(part.digest.clone());
            }
        }
        self.named += needs.len();
        if self.named > REACH_MAX {
            return Err(ArchiveFault(format!("its manifests name more than {REACH_MAX} blobs")).into());
        }
        if let Some(blob) = self.blobs.get_mut(&of.digest) {
            blob.needs = needs.into_iter().collect();
        }
        Ok(())
    }

    /// Keeps a config or a layer.
    fn keep(&mut self, of: &Descriptor) -> Result<(), ArchiveFault> {
        let member = self.find(of)?.ok_or_else(|| Self::missing(of))?;
        let blob = Blob { offset: member.offset, size: member.size, media_type: None, needs: Vec::new() };
        self.blobs.entry(of.digest.clone()).or_insert(blob);
        Ok(())
    }

    /// What an image leads to, its configs among it.
    fn reached<'w>(&'w self, digest: &'w str) -> BTreeSet<&'w str> {
        let (mut seen, mut open) = (BTreeSet::new(), vec![digest]);
        while let Some(digest) = open.pop() {
            if seen.insert(digest)
                && let Some(blob) = self.blobs.get(digest)
            {
                open.extend(blob.needs.iter().map(String::as_str));
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests;
