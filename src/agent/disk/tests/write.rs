//! Writing images.

use std::sync::Mutex;
use std::time::Duration;

use super::super::DiskError;
use super::super::write::{WriteOptions, WriteProgress, WriteSummary, write_exact, write_image};
use super::*;

const OPTIONS: WriteOptions = WriteOptions { in_flight: 4, attempts: 4, pause: Duration::from_millis(1) };

/// 24 MiB and a bit: data, repeats, holes, an odd end.
fn content() -> Vec<u8> {
    let mut content = junk(24 * MIB + 1536, 1);
    content[3 * MIB..9 * MIB].fill(0);
    content[12 * MIB..13 * MIB].fill(7);
    content[14 * MIB..15 * MIB].fill(7);
    content[20 * MIB + 5..24 * MIB].fill(0);
    content
}

async fn write(
    source: &Arc<dyn ChunkSource>,
    manifest: &ImageManifest,
    disk: &TestDisk,
) -> Result<WriteSummary, DiskError> {
    let write = write_exact(source.clone(), manifest, &disk.path, OPTIONS, |_| {});
    tokio::time::timeout(Duration::from_secs(60), write).await.expect("in time")
}

#[tokio::test]
async fn the_disk_reads_as_the_image_and_only_differences_are_written() {
    let content = content();
    let (source, manifest) = image(&content);
    let (_, source) = shared(source);
    let size = content.len();
    for disk in TestDisk::both(40) {
        let first = write(&source, &manifest, &disk).await.expect("written");
        let on_disk = disk.content();
        assert!(on_disk[..size] == content);
        assert!(on_disk[size..size + MIB].iter().all(|b| *b == 0), "what follows the image is wiped");
        assert!(on_disk[39 * MIB..].iter().all(|b| *b == 0), "the end of the disk is wiped");
        assert_eq!(first.written + first.unchanged + first.zeroed, size as u64);
        assert_eq!((first.unchanged, first.total), (0, size as u64));
        // Again: all but the start, which is taken away first, is there.
        let again = write(&source, &manifest, &disk).await.expect("written");
        assert_eq!((again.written, again.zeroed), (MIB as u64, first.zeroed));
        assert!(disk.content()[..size] == content);
        // One byte in the middle of a chunk, and one in a hole.
        let mut changed = disk.content();
        changed[16 * MIB + 300_000] ^= 1;
        changed[5 * MIB] = 1;
        std::fs::write(&disk.path, changed).expect("written");
        let repaired = write(&source, &manifest, &disk).await.expect("written");
        assert_eq!(repaired.written, 2 * MIB as u64);
        assert!(disk.content()[..size] == content);
    }
}

#[tokio::test]
async fn an_image_of_the_disks_size_fits_and_a_larger_one_writes_nothing() {
    for disk in TestDisk::both(8) {
        let before = disk.content();
        let (source, manifest) = image(&junk(8 * MIB + 512, 2));
        let (memory, source) = shared(source);
        let error = write(&source, &manifest, &disk).await.expect_err("too large").to_string();
        assert!(error.contains("the image needs 8389120 bytes, the disk has 8388608"), "{error}");
        assert!(disk.content() == before && memory.asked.load(Ordering::Relaxed) == 0);
        let full = junk(8 * MIB, 3);
        let (source, manifest) = image(&full);
        write(&shared(source).1, &manifest, &disk).await.expect("written");
        assert!(disk.content() == full);
    }
}

#[tokio::test]
async fn a_device_with_large_sectors_is_written_to_the_last_byte() {
    let Some(disk) = TestDisk::looped(32, 4096) else { return };
    let content = content();
    let (source, manifest) = image(&content);
    write(&shared(source).1, &manifest, &disk).await.expect("written");
    assert!(disk.content()[..content.len()] == content);
}

#[tokio::test]
async fn chunks_that_come_damaged_or_late_are_asked_for_again() {
    let content = content();
    let disk = TestDisk::file(32);
    let (mut source, manifest) = image(&content);
    // Fewer than the attempts: on a busy machine they may all hit one chunk.
    source.faults = HashMap::from([(0, Fault::Damaged), (3, Fault::Short), (6, Fault::Gone)]);
    let (memory, source) = shared(source);
    write(&source, &manifest, &disk).await.expect("written");
    assert!(disk.content()[..content.len()] == content);
    assert_eq!(memory.asked.load(Ordering::Relaxed), manifest.chunks.len() + 3);
}

#[tokio::test]
async fn what_does_not_come_right_ends_the_writing_and_leaves_nothing_that_boots() {
    for (fault, from, part) in [
        (Fault::Damaged, 3, "is damaged in the appliance's image library; import the image again"),
        (Fault::Short, 0, "is damaged"),
        (Fault::Gone, 2, "did not come in 4 attempts: connection reset"),
        (Fault::Fatal, 6, "the session has ended"),
    ] {
        let disk = TestDisk::file(32);
        let (mut source, manifest) = image(&content());
        source.faults = (from..200).map(|number| (number, fault.clone())).collect();
        let error = write(&shared(source).1, &manifest, &disk).await.expect_err(part).to_string();
        assert!(error.contains(part) && error.contains(text(&disk.path)), "{error}");
        let left = disk.content();
        assert!(left[..MIB].iter().chain(&left[31 * MIB..]).all(|b| *b == 0));
    }
    let disk = TestDisk::file(32);
    let (source, good) = image(&content());
    let (_, source) = shared(source);
    let bad = |change: fn(&mut ImageManifest)| {
        let mut manifest = good.clone();
        change(&mut manifest);
        manifest
    };
    let before = disk.content();
    for manifest in [
        bad(|m| m.virtual_size = 0),
        bad(|m| m.virtual_size = 1000),
        bad(|m| m.virtual_size = 4 << 20),
        bad(|m| m.chunks.swap(0, 1)),
        bad(|m| m.chunks[1].offset -= 512),
        bad(|m| m.chunks[1].offset = u64::MAX - 511),
        bad(|m| m.chunks[2].length = 0),
        bad(|m| m.chunks[2].length = 2 << 20),
        bad(|m| m.chunks[0].stored = u32::MAX),
    ] {
        assert!(matches!(write(&source, &manifest, &disk).await, Err(DiskError::Manifest(_))), "{manifest:?}");
    }
    assert!(disk.content() == before);
    // A length that the chunk does not unpack to.
    let wrong = bad(|m| m.chunks[2].length = 512);
    assert!(matches!(write(&source, &wrong, &disk).await, Err(DiskError::Manifest(_))));
    let missing = write_exact(source, &good, Path::new("/dev/does-not-exist"), OPTIONS, |_| {}).await;
    assert!(missing.expect_err("none").to_string().starts_with("/dev/does-not-exist: open: No such file"));
}

#[tokio::test]
async fn progress_rises_to_the_whole() {
    let disk = TestDisk::file(32);
    let content = content();
    let (source, manifest) = image(&content);
    let said = Mutex::new(Vec::new());
    let progress = |progress: WriteProgress| said.lock().expect("lock").push(progress);
    write_image(shared(source).1, &manifest, &disk.path, progress).await.expect("written");
    let said = said.into_inner().expect("lock");
    let total = content.len() as u64;
    assert!(said.windows(2).all(|w| w[0].done <= w[1].done), "{said:?}");
    assert_eq!(said.last(), Some(&WriteProgress { done: total, total }));
}
