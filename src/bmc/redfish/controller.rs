//! [`Bmc`] over Redfish: finds the system, writes, reads back.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{Mutex, OnceCell};
use tokio::time::Instant;

use super::client::{RedfishClient, RedfishResponse};
use super::model::{self, RedfishBoot};
use crate::api::metal3::HardwareDetails;
use crate::bmc::quirks::RedfishQuirks;
use crate::bmc::{Bmc, BmcError, BmcSettings, BootDevice, FirmwareMode, Health, PowerAction, PowerState, ProbeReport};

/// Systems named in an error.
const LISTED: usize = 16;

/// One system of a Redfish service.
pub struct RedfishBmc {
    pub(super) client: Arc<RedfishClient>,
    /// Path from the address.
    wanted: Option<String>,
    pub(super) settings: Arc<BmcSettings>,
    found: OnceCell<FoundSystem>,
    /// One change at a time.
    change: Mutex<()>,
}

/// Which system it is and how its controller is treated.
#[derive(Clone)]
pub(super) struct FoundSystem {
    pub path: String,
    pub quirks: RedfishQuirks,
}

/// The systems of a service.
pub(super) struct Systems {
    /// Of those that can be asked, on the first page of the list.
    paths: Vec<String>,
    /// How many there are.
    pub count: usize,
}

impl RedfishBmc {
    /// The system at `path`, or the service's only one.
    pub fn new(client: Arc<RedfishClient>, path: Option<String>, settings: Arc<BmcSettings>) -> Self {
        Self { client, wanted: path, settings, found: OnceCell::new(), change: Mutex::new(()) }
    }

    pub(super) fn peer(&self) -> String {
        self.client.peer().to_string()
    }

    /// Which system it is and how its controller is treated; looked up once.
    async fn found(&self) -> Result<FoundSystem, BmcError> {
        self.found.get_or_try_init(|| self.look_up()).await.cloned()
    }

    async fn look_up(&self) -> Result<FoundSystem, BmcError> {
        let path = match &self.wanted {
            Some(path) => path.clone(),
            None => match self.systems().await? {
                Systems { paths, count: 1 } if paths.len() == 1 => paths.concat(),
                Systems { paths, .. } if paths.is_empty() => {
                    return Err(self.protocol("with an empty list of systems".into()));
                }
                Systems { paths, .. } => {
                    return Err(BmcError::Address(format!(
                        "the BMC at {} has several systems; put the path of one into bmc.address: {}",
                        self.peer(),
                        list(&paths)
                    )));
                }
            },
        };
        let system = self.read_system(&path).await?.body;
        let mut identity = model::identity(&system);
        let all = self.settings.quirks.get();
        if all.needs_firmware(&identity) {
            identity.firmware = self.manager_firmware(&system).await;
        }
        let quirks = all.redfish(&identity);
        tracing::info!(bmc = %self.client.peer(), system = %path, manufacturer = %identity.manufacturer,
            model = %identity.model, firmware = %identity.firmware, profiles = ?quirks.profiles, "identified a BMC");
        Ok(FoundSystem { path, quirks })
    }

    pub(super) async fn systems(&self) -> Result<Systems, BmcError> {
        let root = self.client.get("/redfish/v1/").await?;
        let path = model::link(&root.body["Systems"]).unwrap_or_else(|| "/redfish/v1/Systems".into());
        let listed = self.client.get(&path).await?.body;
        Ok(Systems { paths: model::members(&listed), count: model::count(&listed) })
    }

    pub(super) async fn read_system(&self, path: &str) -> Result<RedfishResponse, BmcError> {
        let mut answer = self.client.request(Method::GET, path, None, None).await?;
        if answer.status == StatusCode::NOT_FOUND {
            // Some controllers know a member only after its collection was read; and the list helps when it is not there.
            let systems = self.systems().await?;
            answer = self.client.request(Method::GET, path, None, None).await?;
            if answer.status == StatusCode::NOT_FOUND {
                return Err(BmcError::Address(format!(
                    "the BMC at {} has no system {path}; it has {}",
                    self.peer(),
                    list(&systems.paths)
                )));
            }
        }
        if answer.status.is_success() { Ok(answer) } else { Err(self.client.refused(&format!("GET {path}"), &answer)) }
    }

    /// Firmware version of the manager; empty when it cannot be had, for no profile fits then.
    pub(super) async fn manager_firmware(&self, system: &Value) -> String {
        let Some(path) = model::link(&system["Links"]["ManagedBy"][0]) else { return String::new() };
        match self.client.get(&path).await {
            Ok(answer) => super::message::clean(answer.body["FirmwareVersion"].as_str().unwrap_or_default(), 128),
            Err(error) => {
                tracing::debug!(bmc = %self.client.peer(), %error, "cannot read the BMC's firmware version");
                String::new()
            }
        }
    }

    pub(super) fn protocol(&self, reason: String) -> BmcError {
        BmcError::Protocol { peer: self.peer(), reason }
    }

    async fn read_power(&self, found: &FoundSystem) -> Result<PowerState, BmcError> {
        let system = self.read_system(&found.path).await?;
        model::power(&system.body).map_err(|reason| self.protocol(reason))
    }

    /// Posts `ComputerSystem.Reset`.
    async fn reset(&self, found: &FoundSystem, action: PowerAction, want: PowerState) -> Result<(), BmcError> {
        let system = self.read_system(&found.path).await?.body;
        let reset = &system["Actions"]["#ComputerSystem.Reset"];
        let allowed = match model::allowable(reset, "ResetType") {
            Some(list) => Some(list),
            None => self.action_info(reset).await,
        };
        let Some(kind) = model::reset_type(action, &found.quirks, allowed.as_deref()) else {
            return Err(BmcError::Unsupported {
                peer: self.peer(),
                what: format!("do {action:?}; it allows only {}", allowed.unwrap_or_default().join(", ")),
            });
        };
        let target = model::link(&json!({ "@odata.id": reset["target"] }))
            .unwrap_or_else(|| format!("{}/Actions/ComputerSystem.Reset", found.path));
        let body = json!({ "ResetType": kind });
        let answer =
            self.patient(&found.quirks, || self.client.request(Method::POST, &target, Some(&body), None)).await?;
        if answer.status.is_success() {
            return Ok(());
        }
        // "Already in that state" is said in many ways; what counts is the state.
        if action != PowerAction::Reset && self.read_power(found).await? == want {
            return Ok(());
        }
        Err(self.client.refused(&format!("reset type {kind}"), &answer))
    }

    /// Allowed values that are kept in a resource of their own.
    pub(super) async fn action_info(&self, action: &Value) -> Option<Vec<String>> {
        let path = model::link(&json!({ "@odata.id": action["@Redfish.ActionInfo"] }))?;
        let info = self.client.get(&path).await.ok()?.body;
        let parameter = info["Parameters"].as_array()?.iter().find(|p| p["Name"] == "ResetType")?;
        let values = parameter["AllowableValues"].as_array()?;
        Some(values.iter().take(64).filter_map(|v| v.as_str().map(str::to_string)).collect())
    }

    /// Repeats a write while the service refuses it with one of the messages that mean "later".
    pub(super) async fn patient<F, R>(&self, quirks: &RedfishQuirks, mut write: F) -> Result<RedfishResponse, BmcError>
    where
        F: FnMut() -> R + Send,
        R: Future<Output = Result<RedfishResponse, BmcError>> + Send,
    {
        let start = Instant::now();
        loop {
            let answer = write().await?;
            let complaint = answer.complaint();
            let later = complaint.ids.iter().any(|id| quirks.retry_messages.contains(id));
            if answer.status.is_success() || !later || start.elapsed() >= quirks.retry_wait {
                return Ok(answer);
            }
            tracing::debug!(bmc = %self.client.peer(), reason = %complaint.text, "the BMC refused a change for now: trying again");
            tokio::time::sleep(self.settings.poll).await;
        }
    }

    async fn change_power(&self, found: &FoundSystem, action: PowerAction) -> Result<(), BmcError> {
        let now = self.read_power(found).await?;
        let (action, want) = match (action, now) {
            (PowerAction::On, PowerState::On) | (PowerAction::ForceOff | PowerAction::SoftOff, PowerState::Off) => {
                return Ok(());
            }
            // A machine that is off has nothing to reset; what is wanted is that it starts.
            (PowerAction::On | PowerAction::Reset, PowerState::Off) => (PowerAction::On, PowerState::On),
            (action @ PowerAction::Reset, _) => (action, PowerState::On),
            (action, _) => (action, PowerState::Off),
        };
        self.reset(found, action, want).await?;
        let deadline = match action {
            PowerAction::SoftOff => self.settings.soft_off_deadline,
            _ => found.quirks.power_wait.unwrap_or(self.settings.power_deadline),
        };
        let what = match action {
            PowerAction::On => "power on",
            PowerAction::ForceOff => "power off",
            PowerAction::SoftOff => "shut down",
            PowerAction::Reset => "reset",
        };
        let start = Instant::now();
        loop {
            // A controller that is silent for a moment is asked again until the deadline.
            let state = self.read_power(found).await;
            if matches!(state, Ok(state) if state == want) {
                return Ok(());
            }
            // A refused login is not repeated: that may lock the account.
            let refused = matches!(state, Err(BmcError::Credentials { .. }));
            if refused || start.elapsed() >= deadline {
                let found = format!("power {:?}", state?).to_lowercase();
                return Err(self.not_applied(what.into(), found, start.elapsed()));
            }
            tokio::time::sleep(self.settings.poll).await;
        }
    }

    pub(super) fn not_applied(&self, what: String, found: String, waited: Duration) -> BmcError {
        BmcError::NotApplied { peer: self.peer(), what, found, waited }
    }

    /// Where the boot override is written: the settings resource if it has one, else the system itself.
    pub(super) async fn boot_resource(
        &self,
        system: &RedfishResponse,
        path: &str,
    ) -> Result<(String, RedfishResponse), BmcError> {
        let settings = model::link(&system.body["@Redfish.Settings"]["SettingsObject"]);
        if let Some(settings) = settings.filter(|s| s != path) {
            let answer = self.client.request(Method::GET, &settings, None, None).await?;
            if answer.status.is_success() && answer.body["Boot"]["BootSourceOverrideTarget"].is_string() {
                return Ok((settings, answer));
            }
        }
        Ok((path.to_string(), system.clone()))
    }

    /// Patches with `If-Match`, through the forms of ETag that services take.
    pub(super) async fn patch(
        &self,
        path: &str,
        body: &Value,
        etags: &[String],
        quirks: &RedfishQuirks,
    ) -> Result<RedfishResponse, BmcError> {
        let mut tags: Vec<Option<String>> = Vec::new();
        if !quirks.no_if_match {
            for tag in etags {
                tags.push(Some(tag.clone()));
                // Weak tags never match by the book, and some services give out nothing else (RFC 9110, 13.1.1).
                if let Some(strong) = tag.strip_prefix("W/") {
                    tags.push(Some(strong.to_string()));
                }
            }
        }
        tags.push(None);
        tags.dedup();
        let last = tags.len() - 1;
        for (at, tag) in tags.iter().enumerate() {
            let write = || self.client.request(Method::PATCH, path, Some(body), tag.as_deref());
            let answer = self.patient(quirks, write).await?;
            if answer.status != StatusCode::PRECONDITION_FAILED || at == last {
                return Ok(answer);
            }
        }
        Err(self.protocol("no precondition was tried".into()))
    }

    async fn change_boot(&self, found: &FoundSystem, mut want: RedfishBoot) -> Result<(), BmcError> {
        let quirks = &found.quirks;
        let what = format!("boot device {want}");
        let deadline = quirks.boot_wait.unwrap_or(self.settings.boot_deadline);
        let system = self.read_system(&found.path).await?;
        let (_, first) = self.boot_resource(&system, &found.path).await?;
        want.choose_target(&first.body["Boot"]);
        self.check_allowed(&first.body["Boot"], &want)?;
        let recipes = model::recipes(&want, &RedfishBoot::read(&first.body), quirks);
        let mut outcome = None;
        for recipe in &recipes {
            let system = self.read_system(&found.path).await?;
            let (path, resource) = self.boot_resource(&system, &found.path).await?;
            let answer = self.patch(&path, &recipe.body(), &resource.etags, quirks).await?;
            if !answer.status.is_success() {
                let answer = if want.http_uri.is_some() { answer.without_words() } else { answer };
                tracing::debug!(bmc = %self.client.peer(), %recipe, reason = %self.client.reason(&answer), "the BMC refused a boot device");
                outcome.get_or_insert(self.client.refused(&format!("PATCH of the boot device ({recipe})"), &answer));
                continue;
            }
            match self.await_boot(found, &want, deadline).await? {
                Ok(()) => return Ok(()),
                Err((mut now, waited)) => {
                    if quirks.boot_needs_power_off && model::power(&system.body) == Ok(PowerState::On) {
                        now.push_str(" (this BMC changes it only while the machine is off)");
                    }
                    // "Accepted and did nothing" says more than the refusal of another form.
                    outcome = Some(self.not_applied(what.clone(), now, waited));
                }
            }
        }
        Err(outcome.unwrap_or_else(|| self.protocol("to no form of the boot device".into())))
    }

    fn check_allowed(&self, boot: &Value, want: &RedfishBoot) -> Result<(), BmcError> {
        for (property, value) in
            [("BootSourceOverrideTarget", &want.target), ("BootSourceOverrideEnabled", &want.enabled)]
        {
            let (Some(allowed), Some(value)) = (model::allowable(boot, property), value) else { continue };
            if !allowed.is_empty() && !allowed.contains(value) {
                let what = format!("take {value} for {property}; it allows {}", allowed.join(", "));
                return Err(BmcError::Unsupported { peer: self.peer(), what });
            }
        }
        Ok(())
    }

    /// Waits until the override reads as wanted; else what it reads as, and how long that was awaited.
    async fn await_boot(
        &self,
        found: &FoundSystem,
        want: &RedfishBoot,
        deadline: Duration,
    ) -> Result<Result<(), (String, Duration)>, BmcError> {
        let start = Instant::now();
        loop {
            let system = self.read_system(&found.path).await?;
            let (_, resource) = self.boot_resource(&system, &found.path).await?;
            let (now, pending) = (RedfishBoot::read(&system.body), RedfishBoot::read(&resource.body));
            if now.satisfies(want, &found.quirks) || pending.satisfies(want, &found.quirks) {
                return Ok(Ok(()));
            }
            if start.elapsed() >= deadline {
                return Ok(Err((pending.to_string(), start.elapsed())));
            }
            tokio::time::sleep(self.settings.poll).await;
        }
    }
}

fn list(paths: &[String]) -> String {
    let mut text = paths.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    if paths.len() > LISTED {
        text.push_str(&format!(" and {} more", paths.len() - LISTED));
    }
    if text.is_empty() { "none".into() } else { text }
}

#[async_trait]
impl Bmc for RedfishBmc {
    async fn power(&self) -> Result<PowerState, BmcError> {
        let found = self.found().await?;
        self.read_power(&found).await
    }

    async fn set_power(&self, action: PowerAction) -> Result<(), BmcError> {
        let _one = self.change.lock().await;
        let found = self.found().await?;
        if action == PowerAction::Reset && found.quirks.reset_by_off_and_on {
            self.change_power(&found, PowerAction::ForceOff).await?;
            return self.change_power(&found, PowerAction::On).await;
        }
        self.change_power(&found, action).await
    }

    async fn set_boot_device(&self, device: BootDevice, mode: FirmwareMode) -> Result<(), BmcError> {
        let _one = self.change.lock().await;
        let found = self.found().await?;
        let want = RedfishBoot::wanted(device, mode, &found.quirks);
        self.change_boot(&found, want).await
    }

    async fn boot_from_url(&self, url: &str) -> Result<(), BmcError> {
        let _one = self.change.lock().await;
        let found = self.found().await?;
        let mut want = RedfishBoot::wanted(BootDevice::UefiHttp, FirmwareMode::Uefi, &found.quirks);
        want.http_uri = Some(url.to_owned());
        self.change_boot(&found, want).await
    }

    async fn insert_media(&self, url: &str) -> Result<(), BmcError> {
        let _one = self.change.lock().await;
        let found = self.found().await?;
        self.insert(&found, url).await
    }

    async fn eject_media(&self) -> Result<(), BmcError> {
        let _one = self.change.lock().await;
        let found = self.found().await?;
        self.eject(&found).await
    }

    async fn media(&self) -> Result<Option<String>, BmcError> {
        let found = self.found().await?;
        self.inserted(&found).await
    }

    async fn inventory(&self) -> Result<HardwareDetails, BmcError> {
        let found = self.found().await?;
        self.read_hardware(&found).await
    }

    async fn probe(&self) -> Result<ProbeReport, BmcError> {
        let found = self.found().await?;
        self.report(&found).await
    }

    async fn health(&self) -> Result<Health, BmcError> {
        let found = self.found().await?;
        Ok(model::health(&self.read_system(&found.path).await?.body))
    }
}
