//! Configuration from TOML: what is read, what is refused, and in which words.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use proptest::prelude::*;
use rstest::rstest;

use collectives_alloc::bytes::ByteSize;
use collectives_alloc::config::ScratchConfig;
use collectives_alloc::options::{DomainMode, OnMiss, Options, Ordering, Seal};
use collectives_alloc::registry;
use collectives_core::dtype::DType;
use collectives_core::error::ErrorKind;
use collectives_core::scratch::ScratchAllocator;

fn refusal(table: &str) -> String {
    let error = ScratchConfig::from_toml(&format!("[scratch]\n{table}")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Config(_)), "{error:?}");
    error.to_string()
}

#[test]
fn the_sample_of_the_design_is_read() {
    let config = ScratchConfig::from_toml(
        r#"
        [server]
        port = 80
        [scratch]
        policy = "geometric"
        growth = 2.0
        max_request = "80MiB"
        cap = "128MiB"
        limit = "2GiB"
        seal = "explicit"
        on_miss = "error"
        domain = "shared"
        ordering = "events"
        agree_deadline = "300s"
        check = false
        "#,
    )
    .unwrap();
    assert_eq!(config.policy_name(), "geometric");
    assert_eq!(config.growth, Some(2.0));
    assert_eq!(
        config.largest_request().unwrap(),
        Some(ByteSize::new(80 << 20))
    );
    let options = config.options();
    assert_eq!(
        (options.cap, options.limit),
        (Some(128 << 20), Some(2 << 30))
    );
    assert!(!config.check);
}

#[test]
fn every_rule_reaches_the_pool() {
    let config = ScratchConfig::from_toml(
        r#"
        [scratch]
        seal = "after-reserve"
        on_miss = "fallback"
        domain = "graph"
        ordering = "caller"
        agree_deadline = "1m 30s"
        "#,
    )
    .unwrap();
    let options = config.options();
    assert_eq!(options.seal, Seal::AfterReserve);
    assert_eq!(options.on_miss, OnMiss::Fallback);
    assert_eq!(options.domain, DomainMode::Graph);
    assert_eq!(options.ordering, Ordering::Caller);
    assert_eq!(options.agree_deadline, Duration::from_secs(90));
}

#[test]
fn an_empty_table_is_the_defaults() {
    let config = ScratchConfig::from_toml("[scratch]").unwrap();
    assert_eq!(config, ScratchConfig::default());
    assert_eq!(config.options(), Options::default());
    assert_eq!(config.policy_name(), "geometric");
}

#[rstest]
#[case("max_request = \"1MiB\"", 1 << 20)]
#[case("max_request = 4096", 4096)]
#[case("max_tokens = 8192\nhidden = 5120\ndtype = \"bf16\"", 8192 * 5120 * 2)]
fn a_known_largest_request_makes_reserved_the_default(#[case] table: &str, #[case] bytes: usize) {
    let config = ScratchConfig::from_toml(&format!("[scratch]\n{table}")).unwrap();
    assert_eq!(config.policy_name(), "reserved");
    assert_eq!(
        config.largest_request().unwrap(),
        Some(ByteSize::new(bytes))
    );
}

const SIZE: &str = "greater than 0 and a whole number of bytes, or one with a unit: B, KiB, MiB, \
                    GiB or TiB (as in `80MiB`)";
const DTYPES: &str = "one of f64, f32, f16, bf16, f8e4m3, f8e5m2, i64, i32, i8, u64, u32, u8";
const FACTOR: &str = "a number greater than 1 and at most 4, or 1 with `arena`";
const PIECE: &str = "a multiple of 4096 greater than 0 and a whole number of bytes, or one with a \
    unit: B, KiB, MiB, GiB or TiB (as in `80MiB`)";
const TIME: &str = "a time greater than 0, with units (as in `300s`)";

#[rstest]
#[case::zero_cap("cap", "0", "0", SIZE, "")]
#[case::negative_cap("cap", "-1", "-1", SIZE, "")]
#[case::decimal_unit("cap", "'80MB'", "80MB", SIZE, "")]
#[case::fraction("limit", "'1.5GiB'", "1.5GiB", SIZE, "")]
#[case::empty("limit", "''", "", SIZE, "")]
#[case::too_large("limit", "'16777216TiB'", "16777216TiB", SIZE, "")]
#[case::zero_piece("piece", "0", "0", PIECE, "")]
#[case::unaligned_piece("piece", "'33KiB'", "33KiB", PIECE, "")]
#[case::zero_request("max_request", "'0MiB'", "0MiB", SIZE, "")]
#[case::growth_below("growth", "0.5", "0.5", FACTOR, "")]
#[case::growth_above("growth", "4.5", "4.5", FACTOR, "")]
#[case::growth_nan("growth", "nan", "NaN", FACTOR, "")]
#[case::growth_infinite("growth", "inf", "inf", FACTOR, "")]
#[case::growth_word("growth", "'double'", "double", FACTOR, "")]
#[case::no_classes("classes_per_octave", "0", "0", "a whole number from 1 to 16", "")]
#[case::many_classes("classes_per_octave", "17", "17", "a whole number from 1 to 16", "")]
#[case::half_a_class("classes_per_octave", "1.5", "1.5", "a whole number from 1 to 16", "")]
#[case::no_tokens("max_tokens", "0", "0", "a whole number greater than 0", "")]
#[case::no_hidden("hidden", "-5", "-5", "a whole number greater than 0", "")]
#[case::dtype("dtype", "'bf61'", "bf61", DTYPES, "; did you mean `bf16`?")]
#[case::seal(
    "seal",
    "'explict'",
    "explict",
    "one of never, explicit, after-reserve",
    "; did you mean `explicit`?"
)]
#[case::seal_underscore(
    "seal",
    "'after_reserve'",
    "after_reserve",
    "one of never, explicit, after-reserve",
    "; did you mean `after-reserve`?"
)]
#[case::on_miss("on_miss", "'panic'", "panic", "one of error, fallback", "")]
#[case::domain(
    "domain",
    "'graphs'",
    "graphs",
    "one of shared, stream, graph",
    "; did you mean `graph`?"
)]
#[case::ordering(
    "ordering",
    "'event'",
    "event",
    "one of events, caller",
    "; did you mean `events`?"
)]
#[case::bare_deadline("agree_deadline", "300", "300", TIME, "")]
#[case::no_deadline("agree_deadline", "'0s'", "0s", TIME, "")]
#[case::garbled_deadline("agree_deadline", "'soon'", "soon", TIME, "")]
#[case::overflowing_deadline(
    "agree_deadline",
    "'99999999999999999999h'",
    "99999999999999999999h",
    TIME,
    ""
)]
#[case::check("check", "'yes'", "yes", "one of true, false", "")]
#[case::check_number("check", "1", "1", "one of true, false", "")]
#[case::policy("policy", "''", "", "the name of a policy", "")]
fn a_bad_value_is_refused(
    #[case] key: &str,
    #[case] value: &str,
    #[case] shown: &str,
    #[case] allowed: &str,
    #[case] hint: &str,
) {
    let column = key.len() + 4;
    assert_eq!(
        refusal(&format!("{key} = {value}")),
        format!(
            "configuration: the TOML text, line 2, column {column}: `{key}` is `{shown}`, but must \
             be {allowed}{hint}"
        )
    );
}

#[rstest]
#[case("polcy", "; did you mean `policy`?")]
#[case("on-miss", "; did you mean `on_miss`?")]
#[case("maxrequest", "; did you mean `max_request`?")]
#[case(
    "agree_timeout",
    "; known are policy, growth, classes_per_octave, max_request, max_tokens, \
    hidden, dtype, cap, piece, limit, max_windows, seal, on_miss, domain, ordering, agree_deadline, check"
)]
fn an_unknown_key_is_refused(#[case] key: &str, #[case] hint: &str) {
    assert_eq!(
        refusal(&format!("check = true\n{key} = 1")),
        format!("configuration: the TOML text, line 3, column 1: unknown key `{key}`{hint}")
    );
}

#[rstest]
#[case::both(
    "max_request = '1MiB'\nmax_tokens = 1\nhidden = 1\ndtype = 'u8'",
    "`max_request` is `1MiB` and `max_tokens` is `1`: give \
     either `max_request`, or `max_tokens`, `hidden` and `dtype`"
)]
#[case::piece_and_cap(
    "piece = '8MiB'\ncap = '4MiB'",
    "`piece` is `8MiB` and `cap` is `4MiB`: a piece must not be larger"
)]
#[case::piece_and_limit(
    "piece = '8MiB'\ncap = '8MiB'\nlimit = 8388607",
    "`piece` is `8MiB` and `limit` is `8388607`: a piece must not be larger"
)]
#[case::one_missing(
    "max_tokens = 1\nhidden = 1",
    "`max_tokens` is `1`, without `dtype`: `max_tokens`, `hidden` and \
     `dtype` go together"
)]
#[case::two_missing(
    "dtype = 'f32'",
    "`dtype` is `f32`, without `max_tokens` and `hidden`: `max_tokens`, \
     `hidden` and `dtype` go together"
)]
#[case::overflow(
    "max_tokens = 9223372036854775807\nhidden = 4\ndtype = 'f64'",
    "`max_tokens` is `9223372036854775807`, `hidden` is `4` and `dtype` is `f64`: that is more bytes than this machine \
     can address"
)]
fn keys_that_do_not_go_together_are_refused(#[case] table: &str, #[case] expected: &str) {
    let text = refusal(table);
    assert!(text.ends_with(expected), "{text}");
}

#[rstest]
#[case::no_table("", "there is no table `[scratch]`")]
#[case::misspelt_table(
    "[scrath]\ncheck = true",
    "there is no table `[scratch]`; is `scrath` meant to be it?"
)]
#[case::not_a_table(
    "scratch = 1",
    "line 1, column 11: invalid type: integer `1`, expected the \
    scratch table"
)]
#[case::twice("[scratch]\ncap = 1\ncap = 2", "line 3, column 1: duplicate key")]
#[case::array(
    "[scratch]\ncap = [1]",
    "line 2, column 7: invalid type: sequence, expected for `cap` \
    greater than 0 and a whole number of bytes, or one with a unit: B, KiB, MiB, GiB or TiB (as in \
    `80MiB`)"
)]
fn a_bad_document_is_refused(#[case] text: &str, #[case] expected: &str) {
    let error = ScratchConfig::from_toml(text).unwrap_err().to_string();
    assert!(
        error.contains("the TOML text") && error.ends_with(expected),
        "{error}"
    );
}

#[test]
fn a_file_is_named_in_its_errors() {
    let path = std::env::temp_dir().join(format!("scratch-{}.toml", std::process::id()));
    let shown = path.display();
    let missing = ScratchConfig::from_toml_file(&path)
        .unwrap_err()
        .to_string();
    assert!(
        missing.starts_with(&format!("configuration: file `{shown}`: ")),
        "{missing}"
    );
    std::fs::write(&path, "[scratch]\nmax_request = 0").unwrap();
    let bad = ScratchConfig::from_toml_file(&path)
        .unwrap_err()
        .to_string();
    std::fs::write(&path, "[scratch]\npolicy = 'geometrik'").unwrap();
    let unknown = ScratchConfig::from_toml_file(&path)
        .unwrap()
        .build()
        .unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert!(
        bad.contains(&format!("file `{shown}`, line 2, column 15: `max_request`")),
        "{bad}"
    );
    assert!(
        unknown.to_string().starts_with(&format!(
            "configuration: `policy` is `geometrik` (file `{shown}`), which is not registered; did \
             you mean `geometric`? registered are "
        )),
        "{unknown}"
    );
}

#[test]
fn a_piece_goes_to_the_pool_and_bounds_what_is_reserved() {
    let table = "[scratch]\nmax_request = '80MiB'\npiece = '32MiB'\ncap = '64MiB'";
    let config = ScratchConfig::from_toml(table).unwrap();
    let scratch = config.build().unwrap();
    let splitting = scratch.splitting().unwrap();
    assert_eq!((splitting.piece, splitting.up_to), (32 << 20, 64 << 20));
    let policy = registry::snapshot().build_policy(&config).unwrap();
    assert_eq!(policy.bound(1, 0), Some(32 << 20));
    let leases = [1, 32, 33, 64, 65].map(|mib| config.options().lease_for(mib << 20) >> 20);
    assert_eq!(leases, [1, 32, 32, 32, 65]);
    let whole = ScratchConfig::default();
    assert_eq!(whole.build().unwrap().splitting(), None);
    let mut alike = config.options();
    alike.piece = None;
    assert_ne!(alike.parameters(), config.options().parameters());
}

#[test]
fn values_set_in_code_are_checked_too() {
    let mut config = ScratchConfig::from_toml("[scratch]\ngrowth = 3").unwrap();
    config.growth = Some(9.0);
    assert_eq!(
        config.build().unwrap_err().to_string(),
        "configuration: set in code: `growth` is `9`, but must be a number greater than 1 and at \
         most 4, or 1 with `arena`"
    );
}

#[test]
// invariant 47
fn only_an_arena_grows_by_what_is_missing() {
    assert_eq!(
        refusal("growth = 1.0"),
        "configuration: the TOML text, line 1, column 1: `growth` is `1`, but must be above 1 for \
         the policy `geometric`"
    );
    let table = "[scratch]\npolicy = \"arena\"\ngrowth = 1.0";
    let config = ScratchConfig::from_toml(table).unwrap();
    assert_eq!(config.build().unwrap().name(), "arena");
}

fn size() -> impl Strategy<Value = Option<ByteSize>> {
    prop::option::of((1_usize..).prop_map(ByteSize::new))
}

prop_compose! {
    fn bound()(
        whole in size(),
        parts in prop::option::of((1_usize..1 << 30, 1_usize..1 << 30, 0_usize..12)),
    ) -> ScratchConfig {
        let mut config = ScratchConfig::default();
        match parts {
            Some((tokens, hidden, dtype)) => {
                config.max_tokens = Some(tokens);
                config.hidden = Some(hidden);
                config.dtype = Some(DType::ALL[dtype]);
            }
            None => config.max_request = whole,
        }
        config
    }
}

prop_compose! {
    fn valid()(
        base in bound(),
        policy in prop::option::of("[a-z0-9-]{1,12}|\\PC{1,8}"),
        growth in prop::option::of(1.0_f64..=4.0),
        classes in prop::option::of(1_u32..=16),
        (cap, limit, piece) in (size(), size(), prop::option::of(1_usize..1 << 40)),
        seal in prop::sample::select(vec![Seal::Never, Seal::Explicit, Seal::AfterReserve]),
        on_miss in prop::sample::select(vec![OnMiss::Error, OnMiss::Fallback]),
        domain in prop::sample::select(
            vec![DomainMode::Shared, DomainMode::Stream, DomainMode::Graph]),
        ordering in prop::sample::select(vec![Ordering::Events, Ordering::Caller]),
        (seconds, nanos) in (0_u64..1 << 40, 1_u32..1_000_000_000),
        check: bool,
    ) -> ScratchConfig {
        let mut config = base;
        config.policy = policy;
        config.growth = growth.filter(|&growth| growth > 1.0);
        config.classes_per_octave = classes;
        (config.cap, config.limit) = (cap, limit);
        config.piece = piece
            .map(|units| ByteSize::new(units * 4096))
            .filter(|&piece| [cap, limit].into_iter().flatten().all(|most| piece <= most));
        config.seal = seal;
        config.on_miss = on_miss;
        config.domain = domain;
        config.ordering = ordering;
        config.agree_deadline = Duration::new(seconds, nanos);
        config.check = check;
        config
    }
}

proptest! {
    #[test]
    fn what_is_written_reads_back(config in valid()) {
        let text = config.to_toml().unwrap();
        prop_assert_eq!(ScratchConfig::from_toml(&text).unwrap(), config, "{}", text);
    }

    #[test]
    fn garbage_is_refused_or_read_but_never_panics(
        text: String,
        key in "policy|growth|cap|dtype|agree_deadline|check|max_tokens|[a-z_]{0,10}",
        value in "[0-9.e+-]{1,25}|'[^'\n]{0,12}'|true|\\[\\]|\\{a = 1\\}",
    ) {
        let _ = ScratchConfig::from_toml(&text);
        let _ = ScratchConfig::from_toml(&format!("[scratch]\n{text}"));
        let _ = ScratchConfig::from_toml(&format!("[scratch]\n{key} = {value}"));
    }
}
