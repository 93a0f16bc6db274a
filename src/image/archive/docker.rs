//! `docker save` before Docker 25: `manifest.json`, and layers as files of whichever name.
//!
//! It has no manifest of the registry's kind, so one is made of each image, of Docker's own media types; what is made depends on
//! the archive alone. Later versions write an OCI image layout beside it, which goes before.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::super::hex;
use super::catalog::{Blob, Catalog, REACH_MAX, Tag};
use super::entries::{ArchiveMember, ArchiveMembers};
use super::names::{RepositoryReference, reference};
use super::oci::{MANIFEST_MAX, NAMES_MAX, judged};
use super::{ArchiveFault, Catalogued, ReadBack, Unkept, shown};
use crate::api::bounded::optional_list;

/// What names the images.
pub(super) const MANIFEST: &str = "manifest.json";
/// Most layers of an image; Docker itself has 127.
const LAYERS_MAX: usize = 512;

const MANIFEST_TYPE: &str = "application/vnd.docker.distribution.manifest.v2+json";
const CONFIG_TYPE: &str = "application/vnd.docker.container.image.v1+json";
const LAYER_TYPE: &str = "application/vnd.docker.image.rootfs.diff.tar";
const GZIP_LAYER_TYPE: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

/// An image in `manifest.json`.
#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default, deserialize_with = "optional_list::<_, _, NAMES_MAX>")]
    repo_tags: Option<Vec<String>>,
    #[serde(default, deserialize_with = "optional_list::<_, _, LAYERS_MAX>")]
    layers: Option<Vec<String>>,
}

/// Those of them that are looked at, and how many names and layers they have together: where that is too much, not all.
#[derive(Default)]
struct SavedImages {
    images: Vec<Saved>,
    names: usize,
    layers: usize,
}

impl SavedImages {
    /// What is wrong with them.
    fn fault(&self) -> Option<String> {
        if self.images.len() > NAMES_MAX {
            return Some(format!("names more than {NAMES_MAX} images"));
        }
        if self.names > NAMES_MAX {
            return Some(format!("has more than {NAMES_MAX} names"));
        }
        // Behind one that has a fault none is looked at.
        if self.images.last().is_some_and(|image| image.layers.as_ref().is_some_and(|layers| layers.len() > LAYERS_MAX))
        {
            return Some(format!("has an image of more than {LAYERS_MAX} layers"));
        }
        // A manifest is made of each image, with some 200 bytes for each of its layers: 32 MiB of all of them.
        (self.layers > REACH_MAX)
            .then(|| format!("names more than {REACH_MAX} layers, those of several images counted for each"))
    }
}

impl<'de> Deserialize<'de> for SavedImages {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct SavedVisitor;
        impl<'de> Visitor<'de> for SavedVisitor {
            type Value = SavedImages;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of images")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<SavedImages, A::Error> {
                let mut all = SavedImages::default();
                while all.fault().is_none()
                    && let Some(image) = entries.next_element::<Saved>()?
                {
                    all.names += image.repo_tags.as_ref().map_or(0, Vec::len);
                    all.layers += image.layers.as_ref().map_or(0, Vec::len);
                    all.images.push(image);
                }
                while entries.next_element::<IgnoredAny>()?.is_some() {}
                Ok(all)
            }
        }
        from.deserialize_seq(SavedVisitor)
    }
}

fn saved(members: &ArchiveMembers, read: &ReadBack<'_>) -> Result<Vec<Saved>, Unkept> {
    let Some(member) = members.files.get(MANIFEST) else { return Ok(Vec::new()) };
    if member.size > MANIFEST_MAX {
        return Err(ArchiveFault(format!("{MANIFEST} has more than {} MiB", MANIFEST_MAX >> 20)).into());
    }
    let bytes = read(member).map_err(Unkept::Unread)?;
    let saved: SavedImages =
        serde_json::from_slice(&bytes).map_err(|error| ArchiveFault(format!("{MANIFEST} cannot be read: {error}")))?;
    if let Some(fault) = saved.fault() {
        return Err(ArchiveFault(format!("{MANIFEST} {fault}")).into());
    }
    Ok(saved.images)
}

fn references(image: &Saved) -> Result<Vec<RepositoryReference>, ArchiveFault> {
    let tags = image.repo_tags.iter().flatten();
    tags.map(|tag| reference(tag).ok_or_else(|| ArchiveFault(format!("{} is no name of an image", shown(tag)))))
        .collect()
}

fn digest_of(member: &ArchiveMember) -> String {
    format!("sha256:{}", member.sha256)
}

fn find<'m>(members: &'m ArchiveMembers, path: &str) -> Result<&'m ArchiveMember, ArchiveFault> {
    members.files.get(path).ok_or_else(|| ArchiveFault(format!("{} is named and not in it", shown(path))))
}

/// The names of images by the digest of their config.
pub(super) fn names(
    members: &ArchiveMembers,
    read: &ReadBack<'_>,
) -> Result<Vec<(String, Vec<RepositoryReference>)>, Unkept> {
    let mut names = Vec::new();
    for image in saved(members, read)? {
        names.push((digest_of(find(members, &image.config)?), references(&image)?));
    }
    Ok(names)
}

/// What an archive has.
pub(super) fn catalogue(members: &ArchiveMembers, read: &ReadBack<'_>) -> Result<Catalogued, Unkept> {
    let (mut blobs, mut tags, mut made) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
    let mut end = members.end;
    for image in saved(members, read)? {
        let names = references(&image)?;
        if names.is_empty() {
            let config = shown(&image.config);
            return Err(ArchiveFault(format!(
                "the image with the config {config} has no name in it: give docker save its name and tag"
            ))
            .into());
        }
        let paths = image.layers.unwrap_or_default();
        let config = find(members, &image.config)?;
        let layers = paths.iter().map(|path| find(members, path)).collect::<Result<Vec<_>, _>>()?;
        let described = layers.iter().map(|layer| described(layer)).collect::<Result<Vec<_>, _>>()?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": { "mediaType": CONFIG_TYPE, "size": config.size, "digest": digest_of(config) },
            "layers": described,
        });
        let bytes = manifest.to_string().into_bytes();
        let digest = format!("sha256:{}", hex(&Sha256::digest(&bytes)));
        let mut needs = BTreeSet::new();
        for part in [config].into_iter().chain(layers) {
            let blob = Blob { offset: part.offset, size: part.size, media_type: None, needs: Vec::new() };
            needs.insert(digest_of(part));
            blobs.entry(digest_of(part)).or_insert(blob);
        }
        if !blobs.contains_key(&digest) {
            let size = bytes.len() as u64;
            let media_type = Some(MANIFEST_TYPE.to_owned());
            blobs.insert(digest.clone(), Blob { offset: end, size, media_type, needs: needs.into_iter().collect() });
            made.push(bytes);
            end += size;
        }
        tags.extend(names.into_iter().map(|RepositoryReference { repository, tag }| Tag {
            repository,
            tag,
            digest: digest.clone(),
        }));
    }
    let tags = judged(tags)?;
    Ok(Catalogued { catalog: Catalog::Oci { blobs, tags }, made })
}

fn described(layer: &ArchiveMember) -> Result<serde_json::Value, ArchiveFault> {
    let kind = match layer.head.as_slice() {
        [0x1f, 0x8b, ..] => GZIP_LAYER_TYPE,
        [0x28, 0xb5, 0x2f, 0xfd] => return Err(ArchiveFault(
            "a layer in it is packed by zstd, which Docker's kind of manifest does not know: save it as an OCI archive"
                .into(),
        )),
        _ => LAYER_TYPE,
    };
    Ok(json!({ "mediaType": kind, "size": layer.size, "digest": digest_of(layer) }))
}
