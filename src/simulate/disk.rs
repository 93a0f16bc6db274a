//! A simulated disk, with a record of everything done to it.
//!
//! A machine's disk: what is on it, and everything that was done to it, in its order. A run that is to show that no
//! machine was written twice, or started from a disk that was not ready, reads it there.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::counts::RunCounts;

/// Deeds that are kept of one machine.
const MOST: usize = 1024;

/// What is on a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DiskContent {
    /// What was there before: nobody's business.
    #[default]
    Former,
    /// Something that was begun and not ended.
    Torn,
    /// Nothing.
    Blank,
    /// The image with this digest, whole.
    Image(String),
}

/// What happened to a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// The ramdisk started.
    Ramdisk,
    /// The system on the disk was started: this one.
    System(DiskContent),
    /// The disk is being erased.
    Erase,
    /// The image with this digest is being written.
    Write(String),
    /// The image is on the disk, whole.
    Written,
    /// The config drive was written.
    ConfigDrive,
}

/// A disk.
#[derive(Debug, Default)]
pub struct SimulatedDisk(Mutex<DiskRecord>);

#[derive(Debug, Default)]
struct DiskRecord {
    content: DiskContent,
    events: Vec<DiskEvent>,
}

impl SimulatedDisk {
    fn record(&self) -> MutexGuard<'_, DiskRecord> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is on it.
    pub fn content(&self) -> DiskContent {
        self.record().content.clone()
    }

    /// What happened so far, the first 1,024 of it.
    pub fn events(&self) -> Vec<DiskEvent> {
        self.record().events.clone()
    }

    /// The ramdisk starts.
    pub(super) fn ramdisk(&self) {
        self.record().note(DiskEvent::Ramdisk);
    }

    /// What is on it is started.
    pub(super) fn start(&self, counts: &RunCounts) {
        let mut record = self.record();
        if matches!(record.content, DiskContent::Image(_)) {
            counts.start_system();
        }
        let content = record.content.clone();
        record.note(DiskEvent::System(content));
    }

    /// It is erased: begins, and ends when the answer is told so.
    pub(super) fn erase(&self) -> DiskChange<'_> {
        self.change(DiskEvent::Erase, DiskContent::Blank)
    }

    /// An image is written.
    pub(super) fn write(&self, digest: &str) -> DiskChange<'_> {
        self.change(DiskEvent::Write(digest.to_owned()), DiskContent::Image(digest.to_owned()))
    }

    /// A config drive goes beside the image. Without one it has no place.
    ///
    /// # Errors
    /// When there is no image.
    pub(super) fn config_drive(&self) -> Result<(), &'static str> {
        let mut record = self.record();
        if !matches!(record.content, DiskContent::Image(_)) {
            return Err("there is no image on the disk");
        }
        record.note(DiskEvent::ConfigDrive);
        Ok(())
    }

    fn change(&self, event: DiskEvent, then: DiskContent) -> DiskChange<'_> {
        let mut record = self.record();
        record.content = DiskContent::Torn;
        record.note(event);
        DiskChange { disk: self, then }
    }
}

impl DiskRecord {
    fn note(&mut self, event: DiskEvent) {
        if self.events.len() < MOST {
            self.events.push(event);
        }
    }
}

/// A change under way. One that is dropped leaves a torn disk.
#[derive(Debug)]
pub(super) struct DiskChange<'d> {
    disk: &'d SimulatedDisk,
    then: DiskContent,
}

impl DiskChange<'_> {
    /// It is done.
    pub(super) fn done(self, counts: &RunCounts) {
        let mut record = self.disk.record();
        if matches!(self.then, DiskContent::Image(_)) {
            counts.write_image();
            record.note(DiskEvent::Written);
        }
        record.content = self.then;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_broken_off_leaves_a_torn_disk() {
        let (disk, counts) = (SimulatedDisk::default(), RunCounts::default());
        assert_eq!(disk.content(), DiskContent::Former);
        disk.erase().done(&counts);
        assert!(disk.config_drive().is_err());
        drop(disk.write("a1"));
        assert_eq!(disk.content(), DiskContent::Torn);
        disk.start(&counts);
        disk.write("a1").done(&counts);
        disk.config_drive().unwrap();
        disk.start(&counts);
        let image = DiskContent::Image("a1".into());
        assert_eq!(disk.content(), image);
        let write = || DiskEvent::Write("a1".into());
        let events = [
            DiskEvent::Erase,
            write(),
            DiskEvent::System(DiskContent::Torn),
            write(),
            DiskEvent::Written,
            DiskEvent::ConfigDrive,
            DiskEvent::System(image),
        ];
        assert_eq!(disk.events(), events);
        let counted = counts.read(0);
        assert_eq!((counted.images_written, counted.systems_started), (1, 1));
    }
}
