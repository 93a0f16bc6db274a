//! Tests of what is unpacked for whom.

use super::*;
use crate::api::slipway::ImageSpec;
use crate::image::Sources;

/// Strangers unpack one chunk at a time, and what they have unpacked displaces nothing of a known machine's.
#[tokio::test]
async fn a_known_machine_waits_for_no_stranger_and_keeps_what_was_unpacked_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.iso");
    let chunks = 2 * KEPT_CHUNKS;
    let bytes: Vec<u8> =
        (0..chunks << 20).map(|at| (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[7]).collect();
    std::fs::write(&path, &bytes).unwrap();
    let library = Library::open(folder.path().join("images"), Sources::of_tests()).unwrap();
    let spec =
        ImageSpec { url: format!("file://{}", path.display()), format: Some("raw".into()), ..ImageSpec::default() };
    let digest = library.import(&spec, |_| {}).await.unwrap().digest;
    let manifest = library.manifest(&digest).unwrap();
    let unpacked = ChunkCache::default();
    let get = |rank, at: usize| unpacked.get(rank, &library, &manifest.chunks[at]);
    let own = get(Rank::Known, 0).await.unwrap();
    for at in 1..manifest.chunks.len() {
        get(Rank::Stranger, at).await.unwrap();
    }
    // All turns of strangers are taken, and the files are gone: what a known machine read is still there.
    let turns = unpacked.strangers.turns.acquire_many(AT_ONCE_FOR_STRANGERS as u32).await.unwrap();
    assert_eq!(get(Rank::Known, manifest.chunks.len() / 2).await.unwrap().len(), 1 << 20);
    std::fs::remove_dir_all(folder.path().join("images/chunks")).unwrap();
    assert!(get(Rank::Known, 0).await.unwrap() == own);
    drop(turns);
    assert!(get(Rank::Stranger, 1).await.is_err(), "strangers keep {KEPT_FOR_STRANGERS} only");
}
