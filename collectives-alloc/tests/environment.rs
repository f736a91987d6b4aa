//! Configuration from the environment, which wins over a file.
#![forbid(unsafe_code)]

use std::ffi::OsString;

use proptest::prelude::*;
use rstest::rstest;

use collectives_alloc::bytes::ByteSize;
use collectives_alloc::config::ScratchConfig;
use collectives_alloc::options::Seal;
use collectives_core::error::ErrorKind;

#[test]
fn variables_are_read_and_others_ignored() {
    let config = ScratchConfig::from_vars([
        ("PATH", "/bin"),
        ("COLLECTIVES_SCRATCHY", "1"),
        ("COLLECTIVES_SCRATCH_POLICY", "replace"),
        ("COLLECTIVES_SCRATCH_MAX_REQUEST", "80MiB"),
        ("COLLECTIVES_SCRATCH_SEAL", "after-reserve"),
        ("COLLECTIVES_SCRATCH_CHECK", "true"),
    ])
    .unwrap();
    assert_eq!(config.policy_name(), "replace");
    assert_eq!(config.max_request, Some(ByteSize::new(80 << 20)));
    assert_eq!(config.seal, Seal::AfterReserve);
    assert!(config.check);
}

#[test]
fn no_variable_is_the_defaults() {
    let config = ScratchConfig::from_vars([("HOME", "/root")]).unwrap();
    assert_eq!(config, ScratchConfig::default());
}

#[test]
fn the_environment_wins_over_a_file() {
    let file = "[scratch]\npolicy = \"exact\"\ngrowth = 3.0";
    let config = ScratchConfig::from_toml(file)
        .and_then(|config| config.overridden_by_vars([("COLLECTIVES_SCRATCH_POLICY", "replace")]))
        .unwrap();
    assert_eq!(
        (config.policy_name(), config.growth),
        ("replace", Some(3.0))
    );
}

#[rstest]
#[case(
    "POLCY",
    "exact",
    "unknown environment variable COLLECTIVES_SCRATCH_POLCY; did you mean \
    COLLECTIVES_SCRATCH_POLICY?"
)]
#[case(
    "cap",
    "1",
    "unknown environment variable COLLECTIVES_SCRATCH_cap; did you mean \
    COLLECTIVES_SCRATCH_CAP?"
)]
#[case(
    "GROWTH",
    "9",
    "environment variable COLLECTIVES_SCRATCH_GROWTH: `growth` is `9`, but must \
    be a number greater than 1 and at most 4, or 1 with `arena`"
)]
#[case(
    "SEAL",
    "Never",
    "environment variable COLLECTIVES_SCRATCH_SEAL: `seal` is `Never`, but must \
    be one of never, explicit, after-reserve; did you mean `never`?"
)]
#[case(
    "CHECK",
    "",
    "environment variable COLLECTIVES_SCRATCH_CHECK: `check` is ``, but must be one \
    of true, false"
)]
#[case(
    "HIDDEN",
    "5120",
    "`hidden` is `5120` (environment variable COLLECTIVES_SCRATCH_HIDDEN), \
    without `max_tokens` and `dtype`: `max_tokens`, `hidden` and `dtype` go together"
)]
fn bad_variables_are_refused(#[case] name: &str, #[case] value: &str, #[case] expected: &str) {
    let name = format!("COLLECTIVES_SCRATCH_{name}");
    let error = ScratchConfig::from_vars([(name, value)]).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Config(expected.to_owned()));
}

#[test]
fn an_unknown_variable_far_from_all_lists_what_is_known() {
    let error = ScratchConfig::from_vars([("COLLECTIVES_SCRATCH_ZZZZZZ", "1")]).unwrap_err();
    assert!(
        error.to_string().ends_with("COLLECTIVES_SCRATCH_CHECK"),
        "{error}"
    );
}

#[test]
fn a_conflict_names_both_origins() {
    let error = ScratchConfig::from_toml("[scratch]\nmax_request = \"1MiB\"")
        .unwrap()
        .overridden_by_vars([("COLLECTIVES_SCRATCH_MAX_TOKENS", "8")])
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "configuration: `max_request` is `1MiB` (the TOML text) and `max_tokens` is `8` \
         (environment variable COLLECTIVES_SCRATCH_MAX_TOKENS): give either `max_request`, or \
         `max_tokens`, `hidden` and `dtype`"
    );
}

#[test]
fn an_unknown_policy_names_its_variable() {
    let config = ScratchConfig::from_vars([("COLLECTIVES_SCRATCH_POLICY", "exakt")]).unwrap();
    let error = config.build().unwrap_err().to_string();
    assert!(
        error.contains(
            "`policy` is `exakt` (environment variable COLLECTIVES_SCRATCH_POLICY), which is not \
             registered; did you mean `exact`? registered are "
        ),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn a_value_that_is_not_unicode_is_refused() {
    use std::os::unix::ffi::OsStringExt;
    let value = OsString::from_vec(vec![0xff]);
    let error = ScratchConfig::from_vars([(OsString::from("COLLECTIVES_SCRATCH_POLICY"), value)])
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "configuration: environment variable COLLECTIVES_SCRATCH_POLICY: the value is not valid \
         Unicode"
    );
}

proptest! {
    #[test]
    fn garbage_never_panics(name: String, value: String, key in "[A-Z_]{0,12}") {
        let _ = ScratchConfig::from_vars([(format!("COLLECTIVES_SCRATCH_{name}"), value.clone())]);
        let _ = ScratchConfig::from_vars([(format!("COLLECTIVES_SCRATCH_{key}"), value)]);
    }
}
