//! The cases, one file per contract.
//!
//! A new case is a function and a line in its suite's table; a new suite is a file and a line here.

pub mod arena;
pub mod buffers;
pub mod communicator;
pub mod disagreement;
pub mod domains;
pub mod failure;
pub mod graph_replay;
pub mod misuse;
pub mod scratch;
pub mod sharded;
pub mod streams;
pub mod symmetric;

use crate::case::Case;

/// Cases about one contract.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// The name, the first part of a case's name.
    pub name: &'static str,
    /// The cases.
    pub cases: &'static [Case],
}

/// Every suite of the kit.
pub const ALL: &[Suite] = &[
    Suite {
        name: "communicator",
        cases: communicator::CASES,
    },
    Suite {
        name: "symmetric",
        cases: symmetric::CASES,
    },
    Suite {
        name: "scratch",
        cases: scratch::CASES,
    },
    Suite {
        name: "arena",
        cases: arena::CASES,
    },
    Suite {
        name: "domains",
        cases: domains::CASES,
    },
    Suite {
        name: "sharded",
        cases: sharded::CASES,
    },
    Suite {
        name: "graph_replay",
        cases: graph_replay::CASES,
    },
    Suite {
        name: "graph_replay_concurrent",
        cases: graph_replay::CONCURRENT,
    },
    Suite {
        name: "streams",
        cases: streams::CASES,
    },
    Suite {
        name: "buffers",
        cases: buffers::CASES,
    },
    Suite {
        name: "disagreement",
        cases: disagreement::CASES,
    },
    Suite {
        name: "failure",
        cases: failure::CASES,
    },
    Suite {
        name: "misuse",
        cases: misuse::CASES,
    },
];

/// Every case with the name of its suite.
pub fn cases() -> impl Iterator<Item = (&'static str, &'static Case)> {
    ALL.iter()
        .flat_map(|suite| suite.cases.iter().map(|case| (suite.name, case)))
}

/// The number of cases in several tables.
const fn count(parts: &[&[Case]]) -> usize {
    let (mut part, mut sum) = (0, 0);
    while part < parts.len() {
        sum += parts[part].len();
        part += 1;
    }
    sum
}

/// The cases of several tables as one.
const fn join<const N: usize>(parts: &[&[Case]]) -> [Case; N] {
    let mut all = [parts[0][0]; N];
    let (mut part, mut at) = (0, 0);
    while part < parts.len() {
        let mut index = 0;
        while index < parts[part].len() {
            all[at] = parts[part][index];
            at += 1;
            index += 1;
        }
        part += 1;
    }
    all
}
