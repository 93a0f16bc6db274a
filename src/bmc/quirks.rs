//! Quirk profiles: what particular controllers do differently, as data.
//!
//! `config/bmc-quirks.toml` is part of the binary; the file that `bmc.quirks` names comes after it. Later profiles are applied last
//! and win. Each profile says where its facts come from.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::Deserialize;

use crate::{files, glob};

/// The file in the binary.
const BUILTIN: &str = include_str!("../../config/bmc-quirks.toml");

/// What stands for the file in the binary where a profile is named.
const BUILTIN_ORIGIN: &str = "built in";
/// Longest file of profiles that is read, in bytes: thousands of profiles.
const FILE_MAX: u64 = 1 << 20;

/// Why a profile file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum QuirksError {
    /// Not TOML, or a key that is not known.
    #[error("BMC quirk profiles: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A profile that would match every controller.
    #[error("BMC quirk profile {0:?} matches everything: give it at least one key under [profile.match]")]
    MatchesAll(String),
    /// Longest wait is an hour.
    #[error("BMC quirk profile {0:?}: {1} is over 3600 seconds")]
    Wait(String, &'static str),
    /// The site's file cannot be read.
    #[error("bmc.quirks {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The site's file can be read and not be used.
    #[error("bmc.quirks {path}: {source}")]
    Site {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<Self>,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuirksFile {
    #[serde(default, rename = "profile")]
    profiles: Vec<QuirkProfile>,
}

/// One profile.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct QuirkProfile {
    /// Name, for logs.
    pub name: String,
    /// The file that it is in.
    #[serde(skip)]
    origin: Arc<str>,
    /// Where the facts come from.
    pub source: String,
    /// Which controllers.
    #[serde(rename = "match")]
    pub matches: Match,
    /// For Redfish.
    #[serde(default)]
    pub redfish: RedfishKeys,
    /// For IPMI.
    #[serde(default)]
    pub ipmi: IpmiKeys,
}

impl QuirkProfile {
    /// For people: its name, and which file it is in.
    fn label(&self) -> String {
        format!("{} ({})", self.name, self.origin)
    }
}

/// Which controllers a profile is for; every key given must fit. Text is compared without case, `*` stands for anything.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// Redfish: `Manufacturer` of the system.
    pub manufacturer: Option<String>,
    /// Redfish: `Model` of the system.
    pub model: Option<String>,
    /// Redfish: `FirmwareVersion` of the manager.
    pub firmware: Option<String>,
    /// IPMI: manufacturer ID of Get Device ID (an IANA enterprise number).
    pub ipmi_manufacturer_id: Option<u32>,
    /// IPMI: product ID of Get Device ID.
    pub ipmi_product_id: Option<u16>,
}

/// Keys under `[profile.redfish]`; one that is absent leaves the value as it was.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct RedfishKeys {
    boot_override_once_unsupported: Option<bool>,
    boot_resend_unchanged: Option<bool>,
    mode_must_be_omitted: Option<bool>,
    mode_not_reported: Option<bool>,
    boot_needs_power_off: Option<bool>,
    no_if_match: Option<bool>,
    reset_by_off_and_on: Option<bool>,
    retry_messages: Option<Vec<String>>,
    retry_wait_seconds: Option<u64>,
    power_wait_seconds: Option<u64>,
    boot_wait_seconds: Option<u64>,
    uefi_http_reported_as: Option<String>,
    media_slot: Option<String>,
    media_on_manager: Option<bool>,
    media_by_patch: Option<bool>,
    media_image_only: Option<bool>,
    media_transfer_required: Option<bool>,
    media_wait_seconds: Option<u64>,
    reset_on: Option<Vec<String>>,
    reset_force_off: Option<Vec<String>>,
    reset_soft_off: Option<Vec<String>>,
    reset_restart: Option<Vec<String>>,
}

/// Keys under `[profile.ipmi]`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct IpmiKeys {
    uefi_disk_selector: Option<u8>,
    valid_flag_not_reported: Option<bool>,
    uefi_flag_not_reported: Option<bool>,
    skip_boot_timeout: Option<bool>,
    power_wait_seconds: Option<u64>,
    boot_wait_seconds: Option<u64>,
}

/// What is known of a Redfish controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedfishIdentity {
    /// `Manufacturer` of the system.
    pub manufacturer: String,
    /// `Model` of the system.
    pub model: String,
    /// `FirmwareVersion` of the manager; empty when it was not asked.
    pub firmware: String,
}

/// How to treat one Redfish controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedfishQuirks {
    /// The profiles that fitted: name, and the file in brackets.
    pub profiles: Vec<String>,
    /// `Once` is not kept: write `Continuous`; the next boot device replaces it.
    pub boot_override_once_unsupported: bool,
    /// Properties that do not change must be sent all the same.
    pub boot_resend_unchanged: bool,
    /// `BootSourceOverrideMode` is refused in a write.
    pub mode_must_be_omitted: bool,
    /// `BootSourceOverrideMode` reads back wrong: do not compare it.
    pub mode_not_reported: bool,
    /// The boot device changes only while the machine is off.
    pub boot_needs_power_off: bool,
    /// `If-Match` must not be sent.
    pub no_if_match: bool,
    /// A reset is done as off, then on.
    pub reset_by_off_and_on: bool,
    /// Message IDs (their last part) that mean "later".
    pub retry_messages: Vec<String>,
    /// How long to try again on such messages.
    pub retry_wait: Duration,
    /// Instead of the usual power deadline.
    pub power_wait: Option<Duration>,
    /// Instead of the usual boot device deadline.
    pub boot_wait: Option<Duration>,
    /// What `BootSourceOverrideTarget` reads as once `UefiHttp` was written.
    pub uefi_http_reported_as: Option<String>,
    /// `Id` of the virtual drive to use.
    pub media_slot: Option<String>,
    /// Virtual drives below the manager are used, not those below the system.
    pub media_on_manager: bool,
    /// Virtual drives are written by PATCH, whatever actions they show.
    pub media_by_patch: bool,
    /// An insertion names the image and nothing else.
    pub media_image_only: bool,
    /// An insertion names the transfer protocol and method too.
    pub media_transfer_required: bool,
    /// Instead of the usual virtual media deadline.
    pub media_wait: Option<Duration>,
    /// `ResetType` for on, best first.
    pub reset_on: Vec<String>,
    /// For off at once.
    pub reset_force_off: Vec<String>,
    /// For off through the operating system.
    pub reset_soft_off: Vec<String>,
    /// For a reset.
    pub reset_restart: Vec<String>,
}

impl Default for RedfishQuirks {
    fn default() -> Self {
        let list = |names: &[&str]| names.iter().map(|n| (*n).to_string()).collect();
        Self {
            profiles: Vec::new(),
            boot_override_once_unsupported: false,
            boot_resend_unchanged: false,
            mode_must_be_omitted: false,
            mode_not_reported: false,
            boot_needs_power_off: false,
            no_if_match: false,
            reset_by_off_and_on: false,
            retry_messages: Vec::new(),
            retry_wait: Duration::from_secs(120),
            power_wait: None,
            boot_wait: None,
            uefi_http_reported_as: None,
            media_slot: None,
            media_on_manager: false,
            media_by_patch: false,
            media_image_only: false,
            media_transfer_required: false,
            media_wait: None,
            reset_on: list(&["On", "ForceOn"]),
            reset_force_off: list(&["ForceOff"]),
            reset_soft_off: list(&["GracefulShutdown", "PushPowerButton"]),
            reset_restart: list(&["ForceRestart", "PowerCycle"]),
        }
    }
}

/// How to treat one IPMI controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpmiQuirks {
    /// The profiles that fitted: name, and the file in brackets.
    pub profiles: Vec<String>,
    /// Byte of boot flags that selects the disk in UEFI mode, instead of 08h.
    pub uefi_disk_selector: Option<u8>,
    /// "Boot flags valid" reads as 0 although they are.
    pub valid_flag_not_reported: bool,
    /// The UEFI bit of the boot flags reads as 0 although it was set.
    pub uefi_flag_not_reported: bool,
    /// Boot option parameter 3 must not be written.
    pub skip_boot_timeout: bool,
    /// Instead of the usual power deadline.
    pub power_wait: Option<Duration>,
    /// Instead of the usual boot device deadline.
    pub boot_wait: Option<Duration>,
}

/// All profiles.
#[derive(Debug, PartialEq, Eq)]
pub struct Quirks {
    profiles: Vec<QuirkProfile>,
}

static SHARED: LazyLock<Arc<Quirks>> = LazyLock::new(|| {
    // The file is part of the binary and a test reads it; should it be wrong all the same, drive plainly.
    Arc::new(Quirks::parse(BUILTIN, BUILTIN_ORIGIN).unwrap_or_else(|error| {
        tracing::error!(%error, "cannot read the built-in BMC profiles: BMCs are driven without them");
        Quirks { profiles: Vec::new() }
    }))
});

impl Quirks {
    /// The profiles in the binary.
    pub fn builtin() -> Arc<Self> {
        SHARED.clone()
    }

    /// The built-in profiles, and after them those of the site's file, if it has one.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or used, with its path. At most 1 MiB is read.
    pub fn load(site: Option<&Path>) -> Result<Arc<Self>, QuirksError> {
        let Some(path) = site else { return Ok(Self::builtin()) };
        let fail = |source| QuirksError::Read { path: path.to_owned(), source };
        let text = files::read_text(path, FILE_MAX).map_err(fail)?;
        let all = Self::with_site(&text, &path.display().to_string());
        all.map(Arc::new).map_err(|source| QuirksError::Site { path: path.to_owned(), source: Box::new(source) })
    }

    /// Profiles of one file alone; `origin` says which file it is.
    pub fn parse(text: &str, origin: &str) -> Result<Self, QuirksError> {
        let mut file: QuirksFile = toml::from_str(text)?;
        let origin: Arc<str> = origin.into();
        for p in &mut file.profiles {
            p.origin = origin.clone();
            let m = &p.matches;
            let any = m.manufacturer.is_some() || m.model.is_some() || m.firmware.is_some();
            if !any && m.ipmi_manufacturer_id.is_none() && m.ipmi_product_id.is_none() {
                return Err(QuirksError::MatchesAll(p.name.clone()));
            }
            for (key, value) in [
                ("retry_wait_seconds", p.redfish.retry_wait_seconds),
                ("power_wait_seconds", p.redfish.power_wait_seconds.max(p.ipmi.power_wait_seconds)),
                ("media_wait_seconds", p.redfish.media_wait_seconds),
                ("boot_wait_seconds", p.redfish.boot_wait_seconds.max(p.ipmi.boot_wait_seconds)),
            ] {
                if value.is_some_and(|s| s > 3600) {
                    return Err(QuirksError::Wait(p.name.clone(), key));
                }
            }
        }
        Ok(Self { profiles: file.profiles })
    }

    /// The built-in profiles, then those of the text `site`, which is of the file `origin`.
    pub fn with_site(site: &str, origin: &str) -> Result<Self, QuirksError> {
        let mut all = Self::parse(BUILTIN, BUILTIN_ORIGIN)?;
        all.profiles.extend(Self::parse(site, origin)?.profiles);
        Ok(all)
    }

    /// The profiles in the order in which they are applied.
    pub fn profiles(&self) -> &[QuirkProfile] {
        &self.profiles
    }

    /// Whether a profile that otherwise fits also asks for the firmware version.
    pub fn needs_firmware(&self, identity: &RedfishIdentity) -> bool {
        self.profiles.iter().any(|p| {
            let m = &p.matches;
            m.firmware.is_some()
                && is_redfish(m)
                && text_fits(&m.manufacturer, &identity.manufacturer)
                && text_fits(&m.model, &identity.model)
        })
    }

    /// How to treat this Redfish controller.
    pub fn redfish(&self, identity: &RedfishIdentity) -> RedfishQuirks {
        let mut q = RedfishQuirks::default();
        for p in &self.profiles {
            let m = &p.matches;
            let fits = is_redfish(m)
                && text_fits(&m.manufacturer, &identity.manufacturer)
                && text_fits(&m.model, &identity.model)
                && text_fits(&m.firmware, &identity.firmware);
            if fits {
                q.profiles.push(p.label());
                q.apply(&p.redfish);
            }
        }
        q
    }

    /// How to treat this IPMI controller.
    pub fn ipmi(&self, manufacturer_id: u32, product_id: u16) -> IpmiQuirks {
        let mut q = IpmiQuirks::default();
        for p in &self.profiles {
            let m = &p.matches;
            let asked = m.ipmi_manufacturer_id.is_some() || m.ipmi_product_id.is_some();
            let fits = m.ipmi_manufacturer_id.is_none_or(|id| id == manufacturer_id)
                && m.ipmi_product_id.is_none_or(|id| id == product_id);
            if asked && fits {
                q.profiles.push(p.label());
                let k = &p.ipmi;
                q.uefi_disk_selector = k.uefi_disk_selector.or(q.uefi_disk_selector);
                set(&mut q.valid_flag_not_reported, k.valid_flag_not_reported);
                set(&mut q.uefi_flag_not_reported, k.uefi_flag_not_reported);
                set(&mut q.skip_boot_timeout, k.skip_boot_timeout);
                q.power_wait = seconds(k.power_wait_seconds).or(q.power_wait);
                q.boot_wait = seconds(k.boot_wait_seconds).or(q.boot_wait);
            }
        }
        q
    }
}

impl RedfishQuirks {
    fn apply(&mut self, k: &RedfishKeys) {
        set(&mut self.boot_override_once_unsupported, k.boot_override_once_unsupported);
        set(&mut self.boot_resend_unchanged, k.boot_resend_unchanged);
        set(&mut self.mode_must_be_omitted, k.mode_must_be_omitted);
        set(&mut self.mode_not_reported, k.mode_not_reported);
        set(&mut self.boot_needs_power_off, k.boot_needs_power_off);
        set(&mut self.no_if_match, k.no_if_match);
        set(&mut self.reset_by_off_and_on, k.reset_by_off_and_on);
        set(&mut self.retry_wait, seconds(k.retry_wait_seconds));
        self.power_wait = seconds(k.power_wait_seconds).or(self.power_wait);
        self.boot_wait = seconds(k.boot_wait_seconds).or(self.boot_wait);
        self.uefi_http_reported_as = k.uefi_http_reported_as.clone().or(self.uefi_http_reported_as.take());
        self.media_slot = k.media_slot.clone().or(self.media_slot.take());
        set(&mut self.media_on_manager, k.media_on_manager);
        set(&mut self.media_by_patch, k.media_by_patch);
        set(&mut self.media_image_only, k.media_image_only);
        set(&mut self.media_transfer_required, k.media_transfer_required);
        self.media_wait = seconds(k.media_wait_seconds).or(self.media_wait);
        set(&mut self.retry_messages, k.retry_messages.clone());
        set(&mut self.reset_on, k.reset_on.clone());
        set(&mut self.reset_force_off, k.reset_force_off.clone());
        set(&mut self.reset_soft_off, k.reset_soft_off.clone());
        set(&mut self.reset_restart, k.reset_restart.clone());
    }
}

fn set<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}

fn seconds(value: Option<u64>) -> Option<Duration> {
    value.map(Duration::from_secs)
}

/// Whether a profile speaks of Redfish controllers at all.
fn is_redfish(m: &Match) -> bool {
    m.manufacturer.is_some() || m.model.is_some() || m.firmware.is_some()
}

fn text_fits(pattern: &Option<String>, text: &str) -> bool {
    pattern.as_deref().is_none_or(|p| glob::matches(p.to_lowercase().as_bytes(), text.trim().to_lowercase().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(manufacturer: &str, model: &str) -> RedfishIdentity {
        RedfishIdentity { manufacturer: manufacturer.into(), model: model.into(), firmware: String::new() }
    }

    #[test]
    fn the_built_in_file_is_good_and_every_profile_names_its_source() {
        let quirks = Quirks::parse(BUILTIN, BUILTIN_ORIGIN).unwrap();
        assert!(quirks.profiles().len() >= 5);
        assert!(quirks.profiles().iter().all(|p| p.source.len() > 10), "a profile without source");
    }

    #[test]
    fn profiles_fit_by_manufacturer_model_and_id() {
        let q = Quirks::builtin();
        assert!(q.redfish(&identity("Supermicro", "SYS-1")).boot_resend_unchanged);
        assert!(q.redfish(&identity("HPE", "ProLiant DL360 Gen10")).mode_must_be_omitted);
        assert!(q.redfish(&identity("LENOVO", "ThinkSystem SR675 V3 OVX")).reset_by_off_and_on);
        assert!(!q.redfish(&identity("Lenovo", "ThinkSystem SR650 V3")).reset_by_off_and_on);
        assert_eq!(q.redfish(&identity("Acme", "")), RedfishQuirks::default());
        assert_eq!(q.ipmi(10876, 1).uefi_disk_selector, Some(0x24));
        assert_eq!(q.ipmi(1, 1), IpmiQuirks::default());
    }

    #[test]
    fn a_site_file_wins_and_a_bad_one_is_refused() {
        let site = "[[profile]]\nname='x'\nsource='the bench'\n[profile.match]\nmanufacturer='supermicro'\nfirmware='1.*'\n\
                    [profile.redfish]\nboot_resend_unchanged=false\nboot_wait_seconds=9\nreset_on=['ForceOn']\n";
        let q = Quirks::with_site(site, "site.toml").unwrap();
        let mut id = identity("Supermicro", "");
        assert_eq!(q.redfish(&id).profiles, ["supermicro (built in)"]);
        assert!(q.needs_firmware(&id) && !q.needs_firmware(&identity("HPE", "")));
        assert!(q.redfish(&id).boot_resend_unchanged);
        id.firmware = "1.73".into();
        let found = q.redfish(&id);
        assert_eq!(found.profiles, ["supermicro (built in)", "x (site.toml)"]);
        assert!(!found.boot_resend_unchanged);
        assert_eq!((found.boot_wait, found.reset_on), (Some(Duration::from_secs(9)), vec!["ForceOn".to_string()]));

        let all = "[[profile]]\nname='x'\nsource='s'\nmatch={}\n";
        assert!(matches!(Quirks::with_site(all, ""), Err(QuirksError::MatchesAll(_))));
        let typo = "[[profile]]\nname='x'\nsource='s'\nmatch={model='m'}\nredfish={no_ifmatch=true}\n";
        assert!(Quirks::with_site(typo, "").unwrap_err().to_string().contains("no_ifmatch"));
        let wait = "[[profile]]\nname='x'\nsource='s'\nmatch={model='m'}\nredfish={boot_wait_seconds=99999}\n";
        assert!(matches!(Quirks::with_site(wait, ""), Err(QuirksError::Wait(..))));
    }

    #[test]
    fn a_file_of_the_site_is_named_in_what_is_said_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("quirks.toml");
        let said = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Quirks::load(Some(&path)).map(|all| all.profiles().len()).map_err(|error| error.to_string())
        };
        let all = Quirks::load(None).unwrap().profiles().len();
        assert_eq!(said("[[profile]]\nname='x'\nsource='s'\nmatch={model='m'}\n"), Ok(all + 1));
        let long = "#".repeat(FILE_MAX as usize + 1);
        for (text, part) in [("[[profile]]\nname='x'\nsource='s'\nmatch={}\n", "matches everything"), (&long, "1 MiB")]
        {
            let error = said(text).unwrap_err();
            assert!(error.starts_with(&format!("bmc.quirks {}: ", path.display())) && error.contains(part), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Quirks::load(Some(&path)).unwrap_err().to_string().contains("No such file"));
    }
}
