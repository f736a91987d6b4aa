//! The fuzz targets on any toolchain: their seeds, what becomes of the seeds, and anything else.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[expect(
    unreachable_pub,
    reason = "shared with the package of the fuzz targets"
)]
#[path = "../../fuzz/entries.rs"]
mod entries;

use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use rstest::rstest;

/// Every seed of a target.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
    let entries = fs::read_dir(folder.join(target)).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// What happens to a seed.
#[derive(Clone, Debug)]
enum Change {
    Byte(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    /// Copies a line, which makes keys and calls twice.
    Line(Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    let piece = prop_oneof![
        vec(any::<u8>(), 1..4),
        select(vec![
            "\n",
            "\r",
            "\"",
            "=",
            ",",
            "\u{85}",
            "-",
            "1e400",
            "nan",
            "inf",
            "ns",
            "18446744073709551615",
            "GiB",
            "TiB",
            "[scratch]\n",
            "policy = \"exact\"\n",
            "9,acquire,4096,0,,grow,\n",
            "9,release,,,,,\n",
            "MAX_REQUEST=1GiB\n",
            "GROWTH=1.0000001\n",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    prop_oneof![
        any::<(Index, u8)>().prop_map(|(at, byte)| Change::Byte(at, byte)),
        (any::<Index>(), piece).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (any::<Index>(), 1_usize..9).prop_map(|(at, count)| Change::Remove(at, count)),
        any::<(Index, Index)>().prop_map(|(from, to)| Change::Line(from, to)),
    ]
}

fn apply(data: &mut Vec<u8>, change: &Change) {
    let place = |at: &Index, data: &Vec<u8>| at.index(data.len() + 1);
    match change {
        Change::Byte(at, byte) => {
            if !data.is_empty() {
                let at = at.index(data.len());
                data[at] = *byte;
            }
        }
        Change::Insert(at, bytes) => {
            let at = place(at, data);
            data.splice(at..at, bytes.iter().copied());
        }
        Change::Remove(at, count) => {
            let at = place(at, data);
            data.drain(at..(at + count).min(data.len()));
        }
        Change::Line(from, to) => {
            let lines: Vec<_> = data.split_inclusive(|&byte| byte == b'\n').collect();
            if !lines.is_empty() {
                let line = lines[from.index(lines.len())];
                let before = to.index(lines.len() + 1);
                data.clone_from(
                    &[&lines[..before], &[line], &lines[before..]]
                        .concat()
                        .concat(),
                );
            }
        }
    }
}

#[rstest]
#[case::config("config", entries::config)]
#[case::environment("environment", entries::environment)]
#[case::trace("trace", entries::trace)]
#[case::record("record", entries::record)]
fn no_input_breaks_a_promise(#[case] target: &str, #[case] entry: fn(&[u8])) {
    let seeds = seeds(target);
    assert!(!seeds.is_empty(), "no seeds for {target}");
    for seed in &seeds {
        entry(seed);
    }
    let changed = (select(seeds), vec(change(), 1..6)).prop_map(|(mut data, changes)| {
        for change in &changes {
            apply(&mut data, change);
        }
        data
    });
    let anything = vec(any::<u8>(), 0..200);
    let mut runner = TestRunner::new(Config {
        cases: 10_000,
        failure_persistence: None,
        ..Config::default()
    });
    let input = prop_oneof![9 => changed, 1 => anything];
    runner
        .run(&input, |data| {
            entry(&data);
            Ok(())
        })
        .unwrap();
}
