//! Virtual media operations: find the drive, empty it, insert, read back, try the next form.

use http::Method;
use tokio::time::Instant;

use super::controller::{FoundSystem, RedfishBmc};
use super::model;
use super::virtual_media_model::{self, MediaWrite, VirtualDrive};
use crate::bmc::BmcError;

/// Managers and drives looked at.
const MOST: usize = 8;

impl RedfishBmc {
    /// Every virtual drive of the system: its own, then those of its managers.
    pub(super) async fn virtual_drives(&self, found: &FoundSystem) -> Result<Vec<VirtualDrive>, BmcError> {
        let system = self.read_system(&found.path).await?.body;
        let mut collections: Vec<String> = model::link(&system["VirtualMedia"]).into_iter().collect();
        let named: Vec<String> =
            system["Links"]["ManagedBy"].as_array().into_iter().flatten().filter_map(model::link).collect();
        drop(system);
        let managers = if named.is_empty() { self.managers().await? } else { named.clone() };
        let mut alone = None;
        for path in managers.iter().take(MOST) {
            let manager = self.client.get(path).await?.body;
            let Some(drives) = model::link(&manager["VirtualMedia"]) else { continue };
            let is_its = match virtual_media_model::is_manager_of(&manager, &found.path, !named.is_empty()) {
                Some(is_its) => is_its,
                // Of the one system that there is, whatever the manager says.
                None => match alone {
                    Some(alone) => alone,
                    None => *alone.insert(self.systems().await?.count < 2),
                },
            };
            if is_its {
                collections.push(drives);
            } else {
                tracing::debug!(bmc = %self.client.peer(), manager = %path, "ignored the virtual drives of a manager: they may be another system's");
            }
        }
        let mut drives: Vec<VirtualDrive> = Vec::new();
        for collection in collections {
            for path in model::members(&self.client.get(&collection).await?.body).into_iter().take(MOST) {
                if !drives.iter().any(|drive| drive.path == path) {
                    drives.push(self.drive(&path).await?);
                }
            }
        }
        Ok(drives)
    }

    async fn drive(&self, path: &str) -> Result<VirtualDrive, BmcError> {
        Ok(VirtualDrive::read(path, &self.client.get(path).await?.body))
    }

    /// Every manager of the service.
    async fn managers(&self) -> Result<Vec<String>, BmcError> {
        let root = self.client.get("/redfish/v1/").await?;
        match model::link(&root.body["Managers"]) {
            Some(path) => Ok(model::members(&self.client.get(&path).await?.body)),
            None => Ok(Vec::new()),
        }
    }

    async fn cd(&self, found: &FoundSystem, what: &str) -> Result<VirtualDrive, BmcError> {
        let drives = self.virtual_drives(found).await?;
        virtual_media_model::choose(&drives, &found.quirks).cloned().ok_or_else(|| {
            let names: Vec<&str> = drives.iter().map(|drive| drive.id.as_str()).collect();
            let has = if names.is_empty() { "none at all".to_owned() } else { names.join(", ") };
            BmcError::Unsupported {
                peer: self.peer(),
                what: format!(
                    "{what}: it shows no virtual drive for CDs of this system alone (virtual drives: {has}); virtual media may need a licence, or be switched off in the BMC"
                ),
            }
        })
    }

    async fn write(
        &self,
        found: &FoundSystem,
        media_write: &MediaWrite,
    ) -> Result<super::client::RedfishResponse, BmcError> {
        if media_write.method == Method::PATCH {
            let now = self.client.get(&media_write.path).await?;
            return self.patch(&media_write.path, &media_write.body, &now.etags, &found.quirks).await;
        }
        let send = || self.client.request(media_write.method.clone(), &media_write.path, Some(&media_write.body), None);
        self.patient(&found.quirks, send).await
    }

    /// Waits until the drive is as wanted; else how it is.
    async fn await_drive(
        &self,
        found: &FoundSystem,
        path: &str,
        wanted: impl Fn(&VirtualDrive) -> bool,
    ) -> Result<Result<(), VirtualDrive>, BmcError> {
        let deadline = found.quirks.media_wait.unwrap_or(self.settings.media_deadline);
        let start = Instant::now();
        loop {
            let drive = self.drive(path).await?;
            if wanted(&drive) {
                return Ok(Ok(()));
            }
            if start.elapsed() >= deadline {
                return Ok(Err(drive));
            }
            tokio::time::sleep(self.settings.poll).await;
        }
    }

    /// Puts an image in. A refusal counts although the drive then shows the image: controllers note the wish before
    /// they fail to fulfil it.
    pub(super) async fn insert(&self, found: &FoundSystem, url: &str) -> Result<(), BmcError> {
        let drive = self.cd(found, "insert a virtual CD").await?;
        let start = Instant::now();
        let mut outcome = None;
        for media_write in virtual_media_model::insertions(&drive, url, &found.quirks) {
            self.empty(found, &drive.path).await?;
            let answer = self.write(found, &media_write).await?;
            if !answer.status.is_success() {
                let answer = answer.without_words();
                tracing::debug!(bmc = %self.client.peer(), drive = %drive.path, reason = %self.client.reason(&answer), "the BMC refused a virtual CD");
                outcome.get_or_insert(self.client.refused("the insertion of a virtual CD", &answer));
                continue;
            }
            match self.await_drive(found, &drive.path, |now| now.holds(url)).await? {
                Ok(()) => {
                    tracing::info!(bmc = %self.client.peer(), drive = %drive.path, "inserted a virtual CD");
                    return Ok(());
                }
                Err(now) => {
                    outcome = Some(self.not_applied("a virtual CD".into(), now.state(), start.elapsed()));
                }
            }
        }
        // Nothing half-inserted stays: the machine might boot from it.
        self.empty(found, &drive.path).await?;
        Err(outcome.unwrap_or_else(|| self.protocol("to no form of inserting a virtual CD".into())))
    }

    /// Empties the CD drive.
    pub(super) async fn eject(&self, found: &FoundSystem) -> Result<(), BmcError> {
        let drive = self.cd(found, "eject a virtual CD").await?;
        self.empty(found, &drive.path).await
    }

    /// What is in the CD drive.
    pub(super) async fn inserted(&self, found: &FoundSystem) -> Result<Option<String>, BmcError> {
        let drive = self.cd(found, "say what its virtual CD is").await?;
        let name = drive.image.or(drive.image_name);
        Ok(drive.inserted.then(|| name.unwrap_or_default()))
    }

    async fn empty(&self, found: &FoundSystem, path: &str) -> Result<(), BmcError> {
        let drive = self.drive(path).await?;
        if !drive.inserted {
            return Ok(());
        }
        let start = Instant::now();
        let mut outcome = None;
        for media_write in virtual_media_model::ejections(&drive, &found.quirks) {
            let answer = self.write(found, &media_write).await?;
            if !answer.status.is_success() {
                // "Nothing is in it" is said in many ways; what counts is the drive.
                if !self.drive(path).await?.inserted {
                    return Ok(());
                }
                outcome.get_or_insert(self.client.refused("the ejection of a virtual CD", &answer.without_words()));
                continue;
            }
            match self.await_drive(found, path, |now| !now.inserted).await? {
                Ok(()) => return Ok(()),
                Err(now) => {
                    outcome =
                        Some(self.not_applied("the ejection of a virtual CD".into(), now.state(), start.elapsed()));
                }
            }
        }
        Err(outcome.unwrap_or_else(|| self.protocol("to no form of ejecting a virtual CD".into())))
    }
}
