//! Images in the words of the Binary Provisioning Agent: whose they are, what is said of them, and the Image of the library that each is.
//! Pure.
//!
//! <https://github.com/akraino-edge-stack/icn>, `cmd/bpa-restapi-agent`. There one image of a name took another owner's place; here
//! owner, cluster and collection are part of what an image is.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::slipway::Image;
use crate::image::identity::ready;
use crate::image::upload::ReceivedBytes;
use crate::image::{hex, unhex};

/// What all paths begin with.
pub const PATH: &str = "/v1/baremetalcluster/";
/// Labels of Images that came so.
pub const LABELS: [&str; 3] = ["bpa.akraino.org/owner", "bpa.akraino.org/cluster", "bpa.akraino.org/images"];
/// What was said of one, as JSON.
const ANNOTATION: &str = "bpa.akraino.org/image";
/// Longest name of an owner and of a cluster: they are labels.
const LABEL_MAX: usize = 63;
/// Longest name of an image.
const NAME_MAX: usize = 255;
/// Letters of an image's name in that of its Image, which people read.
const SLUG: usize = 40;
/// Digits of the hash after it, which tells images apart.
const DIGITS: usize = 16;
/// Most images that are named in one.
const RECORDS_MAX: usize = 64;
/// Longest text that is said of one.
const TEXT_MAX: usize = 1024;

/// Kinds of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Collection {
    /// Programs.
    #[serde(rename = "binary_images")]
    Binary,
    /// Archives of container images.
    #[serde(rename = "container_images")]
    Container,
    /// Disks.
    #[serde(rename = "os_images")]
    Os,
}

impl Collection {
    /// As paths have it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Binary => "binary_images",
            Self::Container => "container_images",
            Self::Os => "os_images",
        }
    }

    /// What the library takes the content for; of a disk it finds out.
    fn format(self) -> Option<&'static str> {
        match self {
            Self::Binary => Some("raw"),
            Self::Container => Some("oci"),
            Self::Os => None,
        }
    }
}

/// A collection of images, of a cluster of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionKey {
    /// Whose.
    pub owner: String,
    /// Of which cluster.
    pub cluster: String,
    /// Which collection.
    pub collection: Collection,
}

/// What a path means: a collection, and an image in it. None where it means nothing.
pub fn parse(path: &str) -> Option<(CollectionKey, Option<String>)> {
    // Nothing is decoded: what would have to be is in no name.
    let mut parts = path.strip_prefix(PATH)?.split('/');
    let (owner, cluster) = (parts.next()?, parts.next()?);
    let collection = [Collection::Binary, Collection::Container, Collection::Os];
    let word = parts.next()?;
    let collection = collection.into_iter().find(|collection| collection.word() == word)?;
    let image = parts.next().filter(|name| !name.is_empty());
    let is_whole = parts.next().is_none() && is_label(owner) && is_label(cluster) && image.is_none_or(is_name);
    let place = CollectionKey { owner: owner.into(), cluster: cluster.into(), collection };
    is_whole.then(|| (place, image.map(str::to_owned)))
}

/// Whether something is the value of a label, and not empty
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/>).
fn is_label(text: &str) -> bool {
    let is_end = |char: Option<char>| char.is_some_and(|char| char.is_ascii_alphanumeric());
    let is_inner = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
    text.len() <= LABEL_MAX && is_end(text.chars().next()) && is_end(text.chars().last()) && text.chars().all(is_inner)
}

/// Whether something is the name of an image: of a file, that is, and of no folder.
fn is_name(text: &str) -> bool {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "._+~-".contains(char);
    (1..=NAME_MAX).contains(&text.len()) && !text.starts_with('.') && text.chars().all(is_plain)
}

/// What is said of an image by whoever sends it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// Its owner; as in the path, if it is said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Its cluster; as in the path, if it is said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster_name: String,
    /// A word for what it is.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Its name.
    pub image_name: String,
    /// Its length in bytes.
    pub image_length: u64,
    /// Its SHA-256, 64 hex digits. Without it nothing is compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_sha256: Option<String>,
    /// What is in it.
    pub description: Description,
}

/// What is in an image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Description {
    /// Each image that is.
    pub image_records: Vec<Described>,
}

/// An image that is in one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Described {
    /// Its name.
    pub image_record_name: String,
    /// Where it is from.
    pub repo: String,
    /// Its tag.
    pub tag: String,
}

impl Metadata {
    /// Judged for a collection.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn check(mut self, place: &CollectionKey) -> Result<Self, String> {
        if !is_name(&self.image_name) {
            return Err("image_name: a name of letters, digits and ._+~-, which begins with no dot, is needed".into());
        }
        if self.image_length == 0 {
            return Err("image_length: the length in bytes is needed".into());
        }
        for (field, said, wanted) in
            [("owner", &self.owner, &place.owner), ("cluster_name", &self.cluster_name, &place.cluster)]
        {
            if !said.is_empty() && said != wanted {
                return Err(format!("{field}: {said:?} is not {wanted:?}, as the path has it"));
            }
        }
        if let Some(sha256) = &mut self.image_sha256 {
            sha256.make_ascii_lowercase();
            if unhex(sha256).is_none() {
                return Err("image_sha256: a SHA-256 has 64 hex digits".into());
            }
        }
        let records = &self.description.image_records;
        let texts = records.iter().flat_map(|one| [&one.image_record_name, &one.repo, &one.tag]);
        if records.len() > RECORDS_MAX || texts.chain([&self.kind]).any(|text| text.len() > TEXT_MAX) {
            return Err(format!("description: at most {RECORDS_MAX} images, with texts of {TEXT_MAX} bytes"));
        }
        (self.owner, self.cluster_name) = (place.owner.clone(), place.cluster.clone());
        if self.kind.is_empty() {
            self.kind = place.collection.word().into();
        }
        Ok(self)
    }
}

/// The name of the Image that an image is.
pub fn name_of(place: &CollectionKey, image: &str) -> String {
    let whole = [&place.owner, &place.cluster, place.collection.word(), image].join("/");
    let mut digest = hex(&Sha256::digest(whole));
    digest.truncate(DIGITS);
    let letter = |char: char| if char.is_ascii_alphanumeric() { char.to_ascii_lowercase() } else { '-' };
    let slug: String = image.chars().map(letter).take(SLUG).collect();
    format!("{}-{digest}", slug.trim_matches('-')).trim_start_matches('-').to_owned()
}

/// The Image that an image becomes.
pub fn image_of(place: &CollectionKey, metadata: &Metadata) -> Value {
    let [owner, cluster, images] = LABELS;
    let mut spec = json!({"url": format!("upload:{}", metadata.image_name)});
    if let Some(format) = place.collection.format() {
        spec["format"] = format.into();
    }
    if let Some(sha256) = &metadata.image_sha256 {
        spec["checksum"] = sha256.as_str().into();
        spec["checksumType"] = "sha256".into();
    }
    json!({
        "apiVersion": "slipway.dev/v1alpha1", "kind": "Image", "spec": spec,
        "metadata": {
            "name": name_of(place, &metadata.image_name),
            "labels": {owner: place.owner, cluster: place.cluster, images: place.collection.word()},
            "annotations": annotations(metadata),
        },
    })
}

/// The annotation that holds what is said of an image.
pub fn annotations(metadata: &Metadata) -> Value {
    json!({ ANNOTATION: json!(metadata).to_string() })
}

/// What was said of an Image, if it is this image.
pub fn said_of(image: &Image, place: &CollectionKey, name: &str) -> Option<Metadata> {
    let said: Metadata = serde_json::from_str(image.metadata.annotations.as_ref()?.get(ANNOTATION)?).ok()?;
    let is_it = said.owner == place.owner && said.cluster_name == place.cluster && said.image_name == name;
    let labels = image.metadata.labels.as_ref()?;
    let is_there = labels.get(LABELS[2]).map(String::as_str) == Some(place.collection.word());
    (is_it && is_there).then_some(said)
}

/// As the agent showed an image, and what Slipway has of it.
pub fn record(image: &Image, said: &Metadata, received: ReceivedBytes) -> Value {
    let mut record = json!(said);
    let is_ready = ready(image).is_some();
    let offset = if is_ready { said.image_length } else { received.bytes };
    record["image_offset"] = offset.into();
    record["upload_complete"] = (is_ready || received.whole).into();
    record["image"] = image.metadata.name.clone().into();
    if let Some(status) = &image.status {
        record["phase"] = json!(status.phase);
        if let Some(message) = &status.message {
            record["message"] = message.as_str().into();
        }
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> CollectionKey {
        CollectionKey { owner: "ops".into(), cluster: "edge".into(), collection: Collection::Os }
    }

    #[test]
    fn a_path_is_a_collection_or_an_image_and_leads_nowhere_else() {
        let image = |name: &str| Some((place(), Some(name.to_owned())));
        for (path, wanted) in [
            ("ops/edge/os_images", Some((place(), None))),
            ("ops/edge/os_images/", Some((place(), None))),
            ("ops/edge/os_images/ubuntu-22.04.qcow2", image("ubuntu-22.04.qcow2")),
            ("ops/edge/os_images/..", None),
            ("ops/edge/os_images/.hidden", None),
            ("ops/edge/os_images/a/b", None),
            ("ops/edge/os_images/%2e%2e%2fetc", None),
            ("ops/edge/os_images/a%00", None),
            ("ops/../os_images/a", None),
            ("../../os_images/a", None),
            ("ops//os_images/a", None),
            ("-ops/edge/os_images/a", None),
            ("ops/edge/disks/a", None),
            ("ops/edge", None),
            ("", None),
        ] {
            assert_eq!(parse(&format!("{PATH}{path}")), wanted, "{path}");
        }
        assert_eq!(parse(&format!("{PATH}ops/edge/os_images/{}", "x".repeat(256))), None);
        assert_eq!(parse(&format!("{PATH}{}/edge/os_images", "x".repeat(64))), None);
        assert_eq!(parse("/v1/other/ops/edge/os_images"), None);
    }

    #[test]
    fn images_of_one_name_are_different_images() {
        let name = |owner: &str, cluster: &str, collection, image: &str| {
            name_of(&CollectionKey { owner: owner.into(), cluster: cluster.into(), collection }, image)
        };
        let names = [
            name("ops", "edge", Collection::Os, "Ubuntu_22.img"),
            name("ops", "edge", Collection::Binary, "Ubuntu_22.img"),
            name("ops", "far", Collection::Os, "Ubuntu_22.img"),
            name("other", "edge", Collection::Os, "Ubuntu_22.img"),
            name("ops", "edge", Collection::Os, "ubuntu_22.img"),
            name("ops", "edge", Collection::Os, "~"),
            name("ops", "edge", Collection::Os, &"x".repeat(255)),
        ];
        let mut known = names.to_vec();
        known.sort();
        known.dedup();
        assert_eq!(known.len(), names.len());
        assert!(names.iter().all(|name| crate::apiserver::subdomain(name).is_empty()), "{names:?}");
        assert!(names[0].starts_with("ubuntu-22-img-"), "{}", names[0]);
    }

    #[test]
    fn what_is_said_is_checked_and_given_back() {
        let good = json!({"owner": "ops", "image_name": "a.img", "image_length": 5, "image_sha256": "AB".repeat(32),
            "description": {"image_records": [{"image_record_name": "a", "repo": "r", "tag": "t"}]}, "image_offset": 3});
        let checked = |said: &Value| serde_json::from_value::<Metadata>(said.clone()).unwrap().check(&place());
        let metadata = checked(&good).unwrap();
        assert_eq!(metadata.image_sha256.as_deref(), Some("ab".repeat(32).as_str()));
        let image: Image = serde_json::from_value(image_of(&place(), &metadata)).unwrap();
        assert_eq!((image.spec.url.as_str(), image.spec.format.as_deref()), ("upload:a.img", None));
        assert_eq!(said_of(&image, &place(), "a.img").as_ref(), Some(&metadata));
        // Who has an Image of this name with other words in it does not have this image.
        assert_eq!(said_of(&image, &CollectionKey { cluster: "far".into(), ..place() }, "a.img"), None);
        assert_eq!(said_of(&image, &CollectionKey { collection: Collection::Binary, ..place() }, "a.img"), None);
        let record = record(&image, &metadata, ReceivedBytes { bytes: 3, whole: false });
        assert_eq!((&record["image_offset"], &record["upload_complete"]), (&json!(3), &json!(false)));
        assert_eq!((&record["type"], &record["cluster_name"]), (&json!("os_images"), &json!("edge")));
        for (field, value, reason) in [
            ("image_name", json!(""), "image_name"),
            ("image_name", json!("../a"), "image_name"),
            ("image_length", json!(0), "image_length"),
            ("owner", json!("other"), "owner"),
            ("cluster_name", json!("other"), "cluster_name"),
            ("image_sha256", json!("xy"), "image_sha256"),
            ("type", json!("x".repeat(2000)), "description"),
        ] {
            let mut said = good.clone();
            said[field] = value;
            let found = checked(&said).unwrap_err();
            assert!(found.starts_with(reason), "{found}");
        }
    }
}
