//! Compares the table of symbols with what released libraries export.
//!
//! The lists are `nm -D --defined-only libnccl.so.2`, names that begin with `nccl` only.

#![forbid(unsafe_code)]

use nccl_sys::Symbols;

const LISTS: [(u32, &str); 3] = [
    (22_809, include_str!("exports/2.28.9.txt")),
    (23_007, include_str!("exports/2.30.7.txt")),
    (23_203, include_str!("exports/2.32.3.txt")),
];

/// Exported, and left out on purpose; a name or a prefix.
const LEFT_OUT: [(&str, &str); 17] = [
    ("ncclBcast", "an older spelling of broadcast"),
    ("ncclCommInitAll", "ranks are set up one by one"),
    ("ncclCommInitRank", "the form with a configuration is used"),
    ("ncclCommGrow", "no use for it yet"),
    ("ncclCommGetUniqueId", "for growing"),
    ("ncclCommSuspend", "no use for it yet"),
    ("ncclCommResume", "no use for it yet"),
    ("ncclCommMemStats", "no use for it yet"),
    (
        "ncclCommQueryProperties",
        "its structure changes between versions",
    ),
    ("ncclDevComm", "needs headers of the same version"),
    ("ncclGin", "needs headers of the same version"),
    ("ncclLLA2A", "needs headers of the same version"),
    ("ncclLsaBarrier", "needs headers of the same version"),
    ("ncclGroupSimulateEnd", "no use for it yet"),
    ("ncclParam", "the environment says the same"),
    ("ncclResetDebugInit", "internal"),
    ("ncclTeamRail", "no use for it yet"),
];

const ONE_SIDED_AND_NEWER: [&str; 9] = [
    "ncclPutSignal",
    "ncclSignal",
    "ncclWaitSignal",
    "ncclSetEncryption",
    "ncclGetMultimemDevice",
    "ncclGetCftDevice",
    "ncclGetPeerDeviceLe",
    "ncclTeamCft",
    "ncclCommInitRankScalable",
];

#[test]
fn every_symbol_is_exported_exactly_since_the_version_in_the_table() {
    for (version, list) in LISTS {
        for (name, since) in Symbols::TABLE {
            let exported = list.lines().any(|line| line == *name);
            assert_eq!(
                exported,
                version >= *since,
                "{name} in {version}, said to exist since {since}"
            );
        }
    }
}

#[test]
fn every_export_is_in_the_table_or_left_out_on_purpose() {
    let left_out = |name: &str| {
        LEFT_OUT.iter().any(|(prefix, _)| name.starts_with(prefix))
            || ONE_SIDED_AND_NEWER
                .iter()
                .any(|prefix| name.starts_with(prefix))
    };
    for (version, list) in LISTS {
        assert!(list.lines().count() > 40);
        for line in list.lines() {
            let known = Symbols::TABLE.iter().any(|(name, _)| name == &line);
            assert!(known || left_out(line), "{line} of {version}");
        }
    }
}
