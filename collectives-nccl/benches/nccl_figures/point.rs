//! All variants at one size, eagerly or in a graph.

use collectives_core::device::Device;
use collectives_core::error::{CaptureFault, Error, Result};
use collectives_core::graph::{GraphExecutable, GraphTemplate};
use collectives_core::stream::StreamRef;
use collectives_nccl::device::CudaDevice;
use serde::{Deserialize, Serialize};

use crate::turns::turns;
use crate::variant::{ALL, Variant, Ways};

/// Figures of one size, in microseconds an operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) bytes: usize,
    pub(crate) graph: bool,
    pub(crate) zero_copy: f64,
    pub(crate) zero_copy_by_hand: f64,
    /// Median of the differences within rounds, as for all that is called `over`.
    pub(crate) zero_copy_over: f64,
    /// Of the call by hand and itself.
    pub(crate) spread: f64,
    pub(crate) staged: f64,
    pub(crate) staged_by_hand: f64,
    pub(crate) staged_over: f64,
    /// Of the copies and the call by hand and themselves.
    pub(crate) staged_spread: f64,
    pub(crate) events_over: f64,
    pub(crate) direct: f64,
    pub(crate) auto: f64,
    pub(crate) auto_path: String,
    /// `auto` less the better of direct and staged by events.
    pub(crate) auto_over: f64,
    /// Kernels of a captured call, ours and by hand.
    pub(crate) kernels: Vec<(String, Vec<String>)>,
}

/// Rounds before those that count.
const WARM: usize = 3;

/// Operations in what is timed: many where one is short.
fn batch(bytes: usize) -> usize {
    match bytes {
        0..=0x10_0000 => 20,
        0x10_0001..=0x80_0000 => 8,
        _ => 2,
    }
}

pub(crate) fn eager(ways: &mut Ways, bytes: usize, rounds: usize) -> Result<Point> {
    let (count, driver) = (batch(bytes), ways.driver);
    let mut times = Times::new(rounds);
    for round in 0..rounds + WARM {
        for index in turns(ALL.len(), round) {
            let variant = ALL[index];
            // Ranks come together, and what is done once is done.
            ways.call(variant)?;
            let took = driver.time(ways.raw(), || {
                (0..count).try_for_each(|_| ways.call(variant))
            })?;
            times.note(round, index, took / each(count));
        }
    }
    Ok(times.point(bytes, false, ways, Vec::new()))
}

pub(crate) fn graph(
    ways: &mut Ways,
    cuda: &CudaDevice,
    bytes: usize,
    rounds: usize,
) -> Result<Point> {
    let (count, driver) = (batch(bytes), ways.driver);
    let mut graphs = Vec::new();
    let mut kernels = Vec::new();
    for variant in ALL {
        let one = capture(ways, cuda, variant, 1)?;
        kernels.push((format!("{variant:?}"), cuda.kernel_names(&*one)?));
        graphs.push(capture(ways, cuda, variant, count)?.instantiate()?);
    }
    let mut times = Times::new(rounds);
    for round in 0..rounds + WARM {
        for index in turns(ALL.len(), round) {
            let graph = &mut graphs[index];
            launch(ways, &mut **graph)?;
            let took = driver.time(ways.raw(), || launch(ways, &mut **graph))?;
            times.note(round, index, took / each(count));
        }
    }
    Ok(times.point(bytes, true, ways, kernels))
}

fn launch(ways: &Ways, graph: &mut dyn GraphExecutable) -> Result<()> {
    // SAFETY: Graphs and eager calls are all on one stream.
    unsafe { graph.launch(&ways.stream) }
}

fn capture(
    ways: &mut Ways,
    cuda: &CudaDevice,
    variant: Variant,
    count: usize,
) -> Result<Box<dyn GraphTemplate>> {
    let stream = ways.stream.clone();
    captured(cuda, &stream, || {
        (0..count).try_for_each(|_| ways.call(variant))
    })
}

/// What some calls become in a graph. Nobody else uses the stream.
pub(crate) fn captured(
    cuda: &CudaDevice,
    stream: &StreamRef,
    calls: impl FnOnce() -> Result<()>,
) -> Result<Box<dyn GraphTemplate>> {
    let graphs = cuda
        .graphs()
        .ok_or_else(|| Error::capture(CaptureFault::NotCapturing))?;
    // SAFETY: By the caller.
    unsafe { graphs.begin(stream) }?;
    let called = calls();
    // SAFETY: As above.
    let graph = unsafe { graphs.end(stream) };
    called?;
    graph
}

#[expect(clippy::cast_precision_loss, reason = "a few operations")]
fn each(count: usize) -> f64 {
    count as f64
}

/// Times of every variant, round by round.
struct Times {
    rounds: Vec<[f64; ALL.len()]>,
}

impl Times {
    fn new(rounds: usize) -> Self {
        Self {
            rounds: vec![[0.0; ALL.len()]; rounds],
        }
    }

    fn note(&mut self, round: usize, variant: usize, time: f64) {
        // The first rounds only warm up.
        if let Some(times) = round
            .checked_sub(WARM)
            .and_then(|at| self.rounds.get_mut(at))
        {
            times[variant] = time;
        }
    }

    fn of(&self, variant: Variant) -> f64 {
        let index = position(variant);
        median(self.rounds.iter().map(|times| times[index]))
    }

    fn over(&self, ours: Variant, theirs: Variant) -> f64 {
        let (ours, theirs) = (position(ours), position(theirs));
        median(self.rounds.iter().map(|times| times[ours] - times[theirs]))
    }

    fn point(
        &self,
        bytes: usize,
        graph: bool,
        ways: &Ways,
        kernels: Vec<(String, Vec<String>)>,
    ) -> Point {
        let better = match self.of(Variant::Direct) < self.of(Variant::StagedEvents) {
            true => Variant::Direct,
            false => Variant::StagedEvents,
        };
        Point {
            bytes,
            graph,
            zero_copy: self.of(Variant::ZeroCopy),
            zero_copy_by_hand: self.of(Variant::ZeroCopyByHand),
            zero_copy_over: self.over(Variant::ZeroCopy, Variant::ZeroCopyByHand),
            spread: self
                .over(Variant::ZeroCopyAgain, Variant::ZeroCopyByHand)
                .abs(),
            staged: self.of(Variant::Staged),
            staged_by_hand: self.of(Variant::StagedByHand),
            staged_over: self.over(Variant::Staged, Variant::StagedByHand),
            staged_spread: self.over(Variant::StagedAgain, Variant::StagedByHand).abs(),
            events_over: self.over(Variant::StagedEvents, Variant::Staged),
            direct: self.of(Variant::Direct),
            auto: self.of(Variant::Auto),
            auto_path: ways.auto.map_or_else(String::new, |path| path.to_string()),
            auto_over: self.over(Variant::Auto, better),
            kernels,
        }
    }
}

fn position(variant: Variant) -> usize {
    ALL.iter().position(|known| *known == variant).unwrap_or(0)
}

/// The middle of some values; NaN if there are none.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
