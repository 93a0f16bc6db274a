//! Hostile patches and configurations against an object, as the API server takes them: `make fuzz`, or by hand
//!
//! ```console
//! $ cargo install --locked cargo-fuzz
//! $ cp Cargo.lock fuzz/
//! $ RUSTC_BOOTSTRAP=1 cargo fuzz run --dev --sanitizer none --target-dir target/fuzz patch_and_apply -- \
//!       -dict=fuzz/words.dict -max_len=4096 -max_total_time=600
//! ```
//!
//! `RUSTC_BOOTSTRAP=1` lets the stable compiler count what is reached; with a nightly one it may be left out, and so may
//! `--sanitizer none`, though there is no unsafe code of our own here for a sanitizer to look at. What is found lies in
//! `fuzz/artifacts`: it is run again with its path in place of the options, and belongs into the unit tests of
//! `src/apiserver/fuzz.rs` once it is mended. Those run the same function with inputs by chance on every `cargo test`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| slipway::apiserver::fuzz::patch_and_apply(slipway::modules::kinds, data));
