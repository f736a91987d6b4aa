//! The figures of one case, from several rounds.

use std::time::{Duration, Instant};

use collectives_core::error::Result;
use serde::Serialize;

use crate::case::{Case, Shape};
use crate::mpi::Peers;
use crate::quiet::{self, Usage};
use crate::sample::smallest;
use crate::target::{self, Check};
use crate::{copy_limit, host, pingpong, processes};

/// One-way nanoseconds that tell two cores that share a cache from two that do not.
const NEAR: f64 = 120.0;

/// Ways to call one of our collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Variant {
    /// `Communicator::enqueue`.
    Enqueue,
    /// `Collectives` without scratch, on raw tensors.
    Handle,
    /// `Collectives`, on symmetric buffers.
    ZeroCopy,
    /// `Collectives`, on ordinary buffers, through scratch.
    Staged,
    /// `Communicator::enqueue`, ranks that are processes, on private buffers.
    Processes,
}

/// Everything one round measured, in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Round {
    /// P before, between and after.
    one_way: [f64; 3],
    copy_limit: Option<f64>,
    ours: Vec<(Variant, f64)>,
    peers: Vec<(&'static str, f64)>,
    /// The share of processor time that other processes took meanwhile.
    others: Option<f64>,
}

/// Where the two cores were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Placement {
    /// They share a cache.
    Near,
    /// They do not.
    Far,
    /// They moved during every round.
    Moved,
}

impl Placement {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Moved => "moved",
        }
    }
}

/// The best of all rounds in one placement: for each figure its smallest, ours and theirs alike.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) operation: &'static str,
    pub(crate) dtype: &'static str,
    pub(crate) bytes: usize,
    pub(crate) ranks: usize,
    pub(crate) placement: Placement,
    /// Whether other processes used the processors in all rounds.
    pub(crate) disturbed: bool,
    /// P: the smallest and the largest.
    pub(crate) one_way: (f64, f64),
    /// F.
    pub(crate) copy_limit: Option<f64>,
    pub(crate) ours: Vec<(Variant, f64)>,
    pub(crate) peers: Vec<(&'static str, f64)>,
    /// B: the fastest peer.
    pub(crate) best_peer: Option<f64>,
    pub(crate) checks: Vec<Check>,
    pub(crate) rounds: Vec<Round>,
}

/// How often to measure, and how long to wait for a quiet machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) patience: Duration,
}

/// Measures one case in rounds; everything that is compared is measured in every round. Rounds that
/// others disturbed are repeated while patience lasts, and count only if there are no others.
pub(crate) fn measure(
    case: &Case,
    shape: Shape,
    effort: Effort,
    peers: &Peers,
) -> Result<Vec<Row>> {
    let until = Instant::now() + effort.patience;
    let (mut rounds, mut disturbed) = (Vec::new(), Vec::new());
    while rounds.len() < effort.rounds {
        quiet::wait(until);
        let round = Round::measure(case, shape, peers)?;
        if quiet::is_disturbed(round.others) {
            disturbed.push(round);
        } else {
            rounds.push(round);
        }
        if rounds.len() + disturbed.len() >= effort.rounds && Instant::now() >= until {
            break;
        }
    }
    if rounds.is_empty() {
        rounds = disturbed;
    }
    let of = |placement| {
        let rounds = rounds.iter().filter(|round| round.placement() == placement);
        rounds.cloned().collect::<Vec<_>>()
    };
    let placed = [Placement::Near, Placement::Far].map(|placement| (placement, of(placement)));
    let mut rows: Vec<_> = placed
        .into_iter()
        .filter(|(_, rounds)| !rounds.is_empty())
        .map(|(placement, rounds)| Row::new(case, placement, rounds))
        .collect();
    if rows.is_empty() {
        rows.push(Row::new(case, Placement::Moved, rounds));
    }
    Ok(rows)
}

impl Round {
    fn measure(case: &Case, shape: Shape, peers: &Peers) -> Result<Self> {
        let usage = Usage::now();
        let before = pingpong::one_way();
        let copy_limit = match case.dtype.name() {
            "f32" if case.operation.name() == "all_reduce" => copy_limit::measure(case, shape)?,
            _ => None,
        };
        let mut ours = host::measure(case, shape)?;
        let between = pingpong::one_way();
        let peers = peers.measure(case, shape);
        match processes::measure(case, shape) {
            Ok(figure) => ours.push((Variant::Processes, figure)),
            Err(error) => eprintln!("processes: {case}: {error}"),
        }
        let one_way = [before, between, pingpong::one_way()];
        Ok(Self {
            one_way,
            copy_limit,
            ours,
            peers,
            others: usage.and_then(|usage| usage.others_since()),
        })
    }

    fn placement(&self) -> Placement {
        match self
            .one_way
            .iter()
            .filter(|&&one_way| one_way < NEAR)
            .count()
        {
            3 => Placement::Near,
            0 => Placement::Far,
            _ => Placement::Moved,
        }
    }
}

impl Row {
    fn new(case: &Case, placement: Placement, rounds: Vec<Round>) -> Self {
        let one_ways = || rounds.iter().flat_map(|round| round.one_way);
        let least = smallest(one_ways()).unwrap_or(f64::NAN);
        let most = one_ways().fold(f64::NAN, f64::max);
        let ours = best(rounds.iter().map(|round| round.ours.as_slice()));
        let peers = best(rounds.iter().map(|round| round.peers.as_slice()));
        let mut row = Self {
            operation: case.operation.name(),
            dtype: case.dtype.name(),
            bytes: case.bytes,
            ranks: case.ranks,
            placement,
            disturbed: rounds.iter().all(|round| quiet::is_disturbed(round.others)),
            one_way: (least, most),
            copy_limit: smallest(rounds.iter().filter_map(|round| round.copy_limit)),
            best_peer: smallest(peers.iter().map(|(_, figure)| *figure)),
            ours,
            peers,
            checks: Vec::new(),
            rounds,
        };
        row.checks = target::checks(case, &row);
        row
    }

    pub(crate) fn ours(&self, variant: Variant) -> Option<f64> {
        let found = self.ours.iter().find(|(known, _)| *known == variant);
        found.map(|(_, figure)| *figure)
    }

    pub(crate) fn peer(&self, name: &str) -> Option<f64> {
        let found = self.peers.iter().find(|(known, _)| *known == name);
        found.map(|(_, figure)| *figure)
    }
}

/// The smallest figure of each name.
fn best<'a, K: Copy + PartialEq + 'a>(
    rounds: impl Iterator<Item = &'a [(K, f64)]>,
) -> Vec<(K, f64)> {
    let mut all: Vec<(K, f64)> = Vec::new();
    for (name, figure) in rounds.flatten() {
        match all.iter_mut().find(|(known, _)| known == name) {
            Some((_, best)) => *best = best.min(*figure),
            None => all.push((*name, *figure)),
        }
    }
    all
}
