//! Names for policies: built in, a third party's, and those that do not exist.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use rstest::rstest;

use collectives_alloc::budget::Budget;
use collectives_alloc::config::ScratchConfig;
use collectives_alloc::options::Options;
use collectives_alloc::policy::{Ask, Decision, Policy, SlotView, best_fit};
use collectives_alloc::pool::Pool;
use collectives_alloc::registry::{self, Registry};
use collectives_core::error::{Error, ErrorKind, Result};

/// A third party's policy: slots come in multiples of a step.
#[derive(Debug)]
struct Steps(usize);

impl Steps {
    fn from_config(config: &ScratchConfig) -> Result<Box<dyn Policy>> {
        let step = config
            .largest_request()?
            .ok_or_else(|| Error::config("`steps` needs `max_request`"))?;
        Ok(Box::new(Self(step.get())))
    }
}

impl Policy for Steps {
    fn name(&self) -> &str {
        "steps"
    }

    fn decide(&self, slots: &[SlotView], ask: &Ask) -> Decision {
        let grow = ask.bytes.checked_next_multiple_of(self.0);
        let grow = grow.map_or(Decision::Refuse, |capacity| Decision::Grow {
            capacity,
            retire: false,
        });
        best_fit(slots, ask.bytes).map_or(grow, Decision::Hit)
    }

    fn digest(&self) -> u64 {
        self.0 as u64
    }

    fn bound(&self, _largest: usize, _granule: usize) -> Option<usize> {
        None
    }
}

fn with_steps() -> Registry {
    let mut registry = Registry::builtin();
    registry
        .register_policy("steps", Steps::from_config)
        .unwrap();
    registry
}

#[rstest]
#[case("exact", "")]
#[case("replace", "growth = 1.5")]
#[case("geometric", "growth = 4")]
#[case("geometric-class", "classes_per_octave = 4")]
#[case("reserved", "max_request = '80MiB'")]
#[case("reserved", "max_tokens = 8\nhidden = 16\ndtype = 'bf16'")]
fn every_built_in_policy_is_built(#[case] name: &str, #[case] rest: &str) {
    let text = format!("[scratch]\npolicy = '{name}'\n{rest}");
    let config = ScratchConfig::from_toml(&text).unwrap();
    assert_eq!(config.build().unwrap().name(), name);
    assert_eq!(
        registry::snapshot().build_policy(&config).unwrap().name(),
        name
    );
}

#[test]
fn names_are_listed_in_order() {
    let registry = Registry::builtin();
    let names: Vec<_> = registry.names().collect();
    assert!(names.is_sorted());
    for name in [
        "exact",
        "geometric",
        "geometric-class",
        "replace",
        "reserved",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
}

#[test]
fn a_third_partys_policy_is_chosen_from_toml() {
    let text = "[scratch]\npolicy = 'steps'\nmax_request = '1MiB'";
    let config = ScratchConfig::from_toml(text).unwrap();
    assert_eq!(with_steps().build(&config).unwrap().name(), "steps");
    assert!(
        Registry::builtin().build(&config).is_err(),
        "registries are apart"
    );
}

#[test]
fn a_third_partys_policy_is_chosen_from_the_environment() {
    // The process-wide registry, under a name that only this test uses.
    registry::register_policy("steps.env", Steps::from_config).unwrap();
    let config = ScratchConfig::from_vars([
        ("COLLECTIVES_SCRATCH_POLICY", "steps.env"),
        ("COLLECTIVES_SCRATCH_MAX_REQUEST", "1MiB"),
    ])
    .unwrap();
    assert_eq!(config.build().unwrap().name(), "steps");
    let again = registry::register_policy("steps.env", Steps::from_config).unwrap_err();
    assert!(matches!(again.kind(), ErrorKind::Config(_)));
}

#[test]
fn a_constructors_error_comes_through() {
    let config = ScratchConfig::from_toml("[scratch]\npolicy = 'steps'").unwrap();
    let error = with_steps().build(&config).unwrap_err();
    assert_eq!(
        error.to_string(),
        "configuration: `steps` needs `max_request`"
    );
}

#[test]
fn a_whole_allocator_has_a_name_too_but_no_policy() {
    let mut registry = Registry::empty();
    let make =
        |config: &ScratchConfig| -> Result<Box<dyn collectives_core::scratch::ScratchAllocator>> {
            let policy = Registry::builtin().build_policy(&{
                let mut config = config.clone();
                config.policy = Some("exact".to_owned());
                config
            })?;
            Ok(Box::new(Pool::new(policy, Options::default())))
        };
    registry.register_allocator("mine", make).unwrap();
    let config = ScratchConfig::from_toml("[scratch]\npolicy = 'mine'").unwrap();
    assert_eq!(registry.build(&config).unwrap().name(), "exact");
    let no_policy = "configuration: `policy` is `mine` (the TOML text), which is a whole allocator and no policy";
    assert_eq!(
        registry.build_policy(&config).unwrap_err().to_string(),
        no_policy
    );
    let within = registry.build_within(&config, Budget::new(1));
    assert_eq!(within.unwrap_err().to_string(), no_policy);
}

#[rstest]
#[case(
    "",
    "`` cannot name a policy; allowed are lower-case letters, digits, `-`, `_` and `.`"
)]
#[case(
    "Mine",
    "`Mine` cannot name a policy; allowed are lower-case letters, digits, `-`, `_` and `.`"
)]
#[case(
    "a b",
    "`a b` cannot name a policy; allowed are lower-case letters, digits, `-`, `_` and `.`"
)]
#[case("exact", "a policy is already registered as `exact`")]
#[case("steps", "a policy is already registered as `steps`")]
fn a_bad_or_taken_name_is_refused(#[case] name: &str, #[case] expected: &str) {
    let error = with_steps()
        .register_policy(name, Steps::from_config)
        .unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Config(expected.to_owned()));
}

#[rstest]
#[case(
    "policy = 'stepps'",
    "`policy` is `stepps` (the TOML text), which is not registered; did you \
    mean `steps`? registered are "
)]
#[case(
    "policy = 'buddy'",
    "`policy` is `buddy` (the TOML text), which is not registered; registered \
    are "
)]
#[case(
    "policy = 'reserved'",
    "`policy` is `reserved` (the TOML text), which needs `max_request`, or \
    `max_tokens`, `hidden` and `dtype`"
)]
fn a_policy_that_cannot_be_built_is_refused(#[case] table: &str, #[case] expected: &str) {
    let config = ScratchConfig::from_toml(&format!("[scratch]\n{table}")).unwrap();
    let error = with_steps().build(&config).unwrap_err();
    let ErrorKind::Config(text) = error.kind() else {
        panic!("{error:?}");
    };
    assert!(text.starts_with(expected), "{text}");
}
