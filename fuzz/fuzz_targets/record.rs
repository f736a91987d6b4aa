#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| collectives_fuzz::record(data));
