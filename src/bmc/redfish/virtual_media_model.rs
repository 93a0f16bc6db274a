//! Virtual media choices, pure: which drive, which writes, and whether what is read back is what was asked.
//!
//! Controllers differ in where the drives are (below the system since Redfish 2020.3, below the manager before), in
//! which properties an insertion takes, and in whether there is an action at all.

use http::Method;
use serde_json::{Value, json};

use super::message::clean;
use super::model::{self, link};
use crate::bmc::quirks::RedfishQuirks;

/// Longest image URL that is compared; a longer one cannot be ours.
const MAX_URL: usize = 2048;

/// A virtual drive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualDrive {
    /// Its path.
    pub path: String,
    /// `Id`.
    pub id: String,
    /// `MediaTypes`.
    pub types: Vec<String>,
    /// Whether something is in it.
    pub inserted: bool,
    /// `Image`: what is in it, where the controller says.
    pub image: Option<String>,
    /// `ImageName`.
    pub image_name: Option<String>,
    /// Target of `InsertMedia`, if there is such an action.
    pub insert: Option<String>,
    /// Target of `EjectMedia`.
    pub eject: Option<String>,
}

impl VirtualDrive {
    /// Reads a VirtualMedia resource at this path.
    pub fn read(path: &str, body: &Value) -> Self {
        let text = |key: &str, most: usize| {
            body[key].as_str().map(str::trim).filter(|text| !text.is_empty()).map(|text| clean(text, most))
        };
        let action = |name: &str| link(&json!({ "@odata.id": body["Actions"][name]["target"] }));
        let image = text("Image", MAX_URL);
        let connected = body["ConnectedVia"].as_str().is_some_and(|via| via != "NotConnected");
        Self {
            path: path.to_owned(),
            id: text("Id", 64).unwrap_or_default(),
            types: model::strings(&body["MediaTypes"]),
            // Old controllers do not say; then what they have and how they are connected does.
            inserted: body["Inserted"].as_bool().unwrap_or(image.is_some() || connected),
            image,
            image_name: text("ImageName", 512),
            insert: action("#VirtualMedia.InsertMedia"),
            eject: action("#VirtualMedia.EjectMedia"),
        }
    }

    /// Whether it takes a CD or DVD. A drive that does not say may.
    pub fn is_cd(&self) -> bool {
        self.types.is_empty() || self.types.iter().any(|kind| matches!(kind.as_str(), "CD" | "DVD"))
    }

    /// Whether this URL is in it. Some controllers show only the file's name.
    pub fn holds(&self, url: &str) -> bool {
        let name = url.rsplit('/').next().unwrap_or(url);
        let shows = |text: &String| text == url || (!name.is_empty() && text.rsplit(['/', '\\']).next() == Some(name));
        self.inserted
            && match (&self.image, &self.image_name) {
                (Some(image), _) => shows(image),
                (None, Some(image)) => shows(image),
                (None, None) => true,
            }
    }

    /// For errors.
    pub fn state(&self) -> String {
        match (self.inserted, &self.image) {
            (false, _) => "no medium".into(),
            (true, None) => "a medium without a name".into(),
            (true, Some(_)) => "another medium".into(),
        }
    }
}

/// Whether a manager's drives are those of a system, which may name it. Nothing where that depends on there being other
/// systems: a drive that several have leads to any of them, and a machine must not start from what was meant for another.
pub fn is_manager_of(manager: &Value, system: &str, named: bool) -> Option<bool> {
    let servers = manager["Links"]["ManagerForServers"].as_array().into_iter().flatten();
    let servers: Vec<String> = servers.filter_map(link).collect();
    match servers.as_slice() {
        [] if named => Some(true),
        [only] if only == system => Some(true),
        _ => None,
    }
}

/// The drive to use: the first that takes CDs, of a kind that the profile prefers.
pub fn choose<'a>(drives: &'a [VirtualDrive], quirks: &RedfishQuirks) -> Option<&'a VirtualDrive> {
    let preferred = |drive: &&VirtualDrive| quirks.media_slot.as_ref().is_none_or(|wanted| *wanted == drive.id);
    let below = |drive: &&VirtualDrive| match quirks.media_on_manager {
        true => drive.path.contains("/Managers/"),
        false => true,
    };
    let cds = || drives.iter().filter(|drive| drive.is_cd());
    cds().filter(below).find(preferred).or_else(|| cds().find(below)).or_else(|| cds().next())
}

/// One way to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaWrite {
    /// POST of an action, or PATCH of the drive.
    pub method: Method,
    /// Path.
    pub path: String,
    /// Body.
    pub body: Value,
}

/// The writes that put an image in, best first. What a controller refuses, another needs: properties beside the
/// image, none, the transfer protocol, or a PATCH instead of the action.
pub fn insertions(drive: &VirtualDrive, url: &str, quirks: &RedfishQuirks) -> Vec<MediaWrite> {
    let protocol = if url.starts_with("https:") { "HTTPS" } else { "HTTP" };
    let full = json!({ "Image": url, "Inserted": true, "WriteProtected": true });
    let bare = json!({ "Image": url });
    let transfer = json!({ "Image": url, "TransferProtocolType": protocol, "TransferMethod": "Stream",
        "Inserted": true, "WriteProtected": true });
    let mut bodies = vec![full.clone(), bare.clone(), transfer.clone()];
    if quirks.media_transfer_required {
        bodies.rotate_right(1);
    } else if quirks.media_image_only {
        bodies = vec![bare.clone()];
    }
    let mut out = Vec::new();
    if let Some(target) = drive.insert.as_ref().filter(|_| !quirks.media_by_patch) {
        out.extend(bodies.into_iter().map(|body| MediaWrite { method: Method::POST, path: target.clone(), body }));
    }
    if out.is_empty() {
        let switched = json!({ "Image": url, "Inserted": true });
        let bodies = if quirks.media_image_only { vec![bare] } else { vec![switched, full, bare] };
        out.extend(bodies.into_iter().map(|body| MediaWrite { method: Method::PATCH, path: drive.path.clone(), body }));
    }
    out
}

/// The writes that empty a drive, best first.
pub fn ejections(drive: &VirtualDrive, quirks: &RedfishQuirks) -> Vec<MediaWrite> {
    let mut out = Vec::new();
    if let Some(target) = drive.eject.as_ref().filter(|_| !quirks.media_by_patch) {
        out.push(MediaWrite { method: Method::POST, path: target.clone(), body: json!({}) });
    }
    for body in [json!({ "Image": null, "Inserted": false }), json!({ "Image": null })] {
        out.push(MediaWrite { method: Method::PATCH, path: drive.path.clone(), body });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "http://10.0.0.1/boot/iso/abc.iso";

    fn drive(path: &str, body: Value) -> VirtualDrive {
        VirtualDrive::read(path, &body)
    }

    #[test]
    fn a_drive_is_read_whatever_it_leaves_out() {
        for (body, inserted, holds) in [
            (json!({ "Inserted": true, "Image": URL }), true, true),
            (json!({ "Inserted": true, "Image": "http://10.0.0.1/other.iso" }), true, false),
            (json!({ "Inserted": true, "Image": "abc.iso" }), true, true),
            (json!({ "Inserted": true, "Image": "", "ImageName": "abc.iso" }), true, true),
            (json!({ "Inserted": true, "ImageName": "old.iso" }), true, false),
            (json!({ "Inserted": true }), true, true),
            (json!({ "Inserted": false, "Image": URL }), false, false),
            (json!({ "Image": URL }), true, true),
            (json!({ "ConnectedVia": "NotConnected" }), false, false),
            (json!({ "ConnectedVia": "URI" }), true, true),
            (json!({}), false, false),
            (json!({ "Inserted": "yes", "Image": 7, "MediaTypes": "CD", "Actions": [] }), false, false),
        ] {
            let read = drive("/v/Cd", body.clone());
            assert_eq!((read.inserted, read.holds(URL)), (inserted, holds), "{body}");
        }
        let foreign = json!({ "Actions": { "#VirtualMedia.InsertMedia": { "target": "http://evil/x" } } });
        assert_eq!(drive("/v/Cd", foreign).insert, None);
    }

    #[test]
    fn a_drive_of_several_systems_is_none() {
        const SYSTEM: &str = "/redfish/v1/Systems/1";
        let manager = |systems: &[&str]| {
            let links: Vec<Value> = systems.iter().map(|path| json!({ "@odata.id": path })).collect();
            json!({ "Links": { "ManagerForServers": links } })
        };
        for (systems, named, want) in [
            (&[SYSTEM][..], true, Some(true)),
            (&["/redfish/v1/Systems/1/"], false, Some(true)),
            (&[], true, Some(true)),
            (&[], false, None),
            (&["/redfish/v1/Systems/2"], true, None),
            (&[SYSTEM, "/redfish/v1/Systems/2"], true, None),
        ] {
            assert_eq!(is_manager_of(&manager(systems), SYSTEM, named), want, "{systems:?} {named}");
        }
        assert_eq!(is_manager_of(&json!({ "Links": 7 }), SYSTEM, false), None);
    }

    #[test]
    fn the_first_cd_is_taken_unless_a_profile_names_another() {
        let of = |path: &str, id: &str, types: &[&str]| drive(path, json!({ "Id": id, "MediaTypes": types }));
        let drives = [
            of("/redfish/v1/Systems/1/VirtualMedia/F", "F", &["Floppy", "USBStick"]),
            of("/redfish/v1/Systems/1/VirtualMedia/1", "1", &["CD", "DVD", "USBStick"]),
            of("/redfish/v1/Systems/1/VirtualMedia/2", "2", &["DVD"]),
            of("/redfish/v1/Managers/1/VirtualMedia/CD", "CD", &["CD"]),
        ];
        let plain = RedfishQuirks::default();
        let path = |quirks: &RedfishQuirks| choose(&drives, quirks).map(|drive| drive.path.clone()).unwrap_or_default();
        assert!(path(&plain).ends_with("Systems/1/VirtualMedia/1"));
        assert!(path(&RedfishQuirks { media_slot: Some("2".into()), ..plain.clone() }).ends_with("/2"));
        assert!(path(&RedfishQuirks { media_slot: Some("9".into()), ..plain.clone() }).ends_with("/1"));
        assert!(
            path(&RedfishQuirks { media_on_manager: true, ..plain.clone() }).ends_with("Managers/1/VirtualMedia/CD")
        );
        assert_eq!(choose(&drives[..1], &plain), None);
    }

    #[test]
    fn writes_follow_what_the_drive_offers_and_what_its_profile_says() {
        let action = |name: &str| json!({ "target": format!("/v/Cd/Actions/{name}") });
        let with = drive(
            "/v/Cd",
            json!({ "Actions": { "#VirtualMedia.InsertMedia": action("Insert"),
            "#VirtualMedia.EjectMedia": action("Eject") } }),
        );
        let without = drive("/v/Cd", json!({}));
        let plain = RedfishQuirks::default();
        let keys = |media_writes: &[MediaWrite]| -> Vec<String> {
            let key = |media_write: &MediaWrite| {
                let body: Vec<&String> =
                    media_write.body.as_object().map(|body| body.keys().collect()).unwrap_or_default();
                format!(
                    "{} {} {}",
                    media_write.method,
                    media_write.path,
                    body.iter().map(|key| &key[..5]).collect::<String>()
                )
            };
            media_writes.iter().map(key).collect()
        };
        assert_eq!(
            keys(&insertions(&with, URL, &plain)),
            [
                "POST /v/Cd/Actions/Insert ImageInserWrite",
                "POST /v/Cd/Actions/Insert Image",
                "POST /v/Cd/Actions/Insert ImageInserTransTransWrite"
            ]
        );
        let bare = RedfishQuirks { media_image_only: true, ..plain.clone() };
        assert_eq!(keys(&insertions(&with, URL, &bare)), ["POST /v/Cd/Actions/Insert Image"]);
        assert_eq!(keys(&insertions(&without, URL, &bare)), ["PATCH /v/Cd Image"]);
        let transfer = RedfishQuirks { media_transfer_required: true, ..plain.clone() };
        let first = &insertions(&with, "https://x/a.iso", &transfer)[0];
        assert_eq!(
            (&first.body["TransferProtocolType"], &first.body["TransferMethod"]),
            (&json!("HTTPS"), &json!("Stream"))
        );
        let patch = RedfishQuirks { media_by_patch: true, ..plain.clone() };
        assert_eq!(insertions(&with, URL, &patch)[0].method, Method::PATCH);
        assert_eq!(insertions(&without, URL, &plain)[0].body, json!({ "Image": URL, "Inserted": true }));
        assert_eq!(ejections(&with, &plain)[0].path, "/v/Cd/Actions/Eject");
        assert_eq!(ejections(&without, &plain)[0].method, Method::PATCH);
    }
}
