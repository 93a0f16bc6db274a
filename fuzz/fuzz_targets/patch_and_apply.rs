#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| slipway::apiserver::fuzz::patch_and_apply(data));
