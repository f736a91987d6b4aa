//! The figures, as text and as JSON.

use std::error::Error;
use std::fmt;

use collectives_examples::plot::Plot;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::options::Options;
use crate::outcome::{Averages, Kept, Outcome, Paths, Step};
use crate::single::Rounding;

/// How far losses may be, at any step, from those of one rank whose sums stay `f32`, where a backend adds in
/// an order of its own. In bf16, sums of gradients are rounded to eight bits, and Adam carries on what that
/// changes: with layers and batches as they are by default, differences up to 0.08 were seen over seeds and
/// numbers of ranks while losses fell from 0.69, and 0.13 with other widths.
const LOSS_BOUND: f64 = 0.15;
/// The least samples of a micro-batch for which that is claimed. Gradients of fewer are noisier: losses of a few
/// samples differed by up to 0.68 with nothing wrong. `--exact` needs no bound.
const BOUNDED_BATCH: u16 = 32;
/// How far the length of the first step's gradient may be from that rank's, relative to it: rounding
/// to eight bits moves each element by no more than this.
const GRADIENT_BOUND: f64 = 1.0 / 256.0;

/// Everything one invocation found.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    backend: &'static str,
    ranks: usize,
    dtype: String,
    parameters: usize,
    loss: Vec<f64>,
    gradient_norm: Vec<f64>,
    accuracy: f32,
    samples_a_second: f64,
    all_gather: Paths,
    reduce_scatter: Paths,
    all_reduce: Paths,
    averages: Averages,
    replays: u64,
    kept: Kept,
    /// The largest difference from one rank that folds the micro-batches.
    loss_difference: f64,
    /// The relative difference of the first gradient's length from that rank's.
    gradient_difference: f64,
    #[serde(skip)]
    bounds: Bounds,
}

/// How far a run may be from one rank that folds the micro-batches.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Of losses; `None` where nothing is claimed.
    losses: Option<f64>,
    /// Of the length of the first gradient, relative to it.
    gradient: f64,
}

impl Bounds {
    /// None at all where the bits of the run are known.
    fn of(options: &Options, averages: Averages) -> Self {
        if Rounding::of(options, averages).is_some() {
            return Self {
                losses: Some(0.0),
                gradient: 0.0,
            };
        }
        Self {
            losses: (options.batch >= BOUNDED_BATCH).then_some(LOSS_BOUND),
            gradient: GRADIENT_BOUND,
        }
    }
}

impl Run {
    /// Compares the ranks with each other, and with one rank that folds all micro-batches.
    pub(crate) fn new(
        options: &Options,
        parameters: usize,
        ranks: &[Outcome],
        single: &[Step],
    ) -> Result<Self, Box<dyn Error>> {
        let first = ranks.first().ok_or("there are no ranks")?;
        if ranks.iter().any(|rank| rank.steps != first.steps) {
            return Err("ranks saw different losses".into());
        }
        if ranks.iter().any(|rank| rank.kept != first.kept) {
            return Err("ranks keep different memory".into());
        }
        let slowest = ranks.iter().map(|rank| rank.nanoseconds).max();
        let samples = options.ranks() * usize::from(options.batch) * options.steps;
        #[expect(clippy::cast_precision_loss, reason = "for people to read")]
        let samples_a_second = samples as f64 * 1e9 / slowest.unwrap_or(0).max(1) as f64;
        let pairs = || first.steps.iter().zip(single);
        let losses = pairs().map(|(ours, one)| (ours.loss - one.loss).abs());
        let gradient = pairs().next().map_or(0.0, |(ours, one)| {
            (ours.gradient_norm - one.gradient_norm).abs() / one.gradient_norm
        });
        Ok(Self {
            backend: options.start.backend.name(),
            ranks: options.ranks(),
            dtype: format!("{:?}", options.dtype).to_lowercase(),
            parameters,
            loss: first.steps.iter().map(|step| step.loss).collect(),
            gradient_norm: first.steps.iter().map(|step| step.gradient_norm).collect(),
            accuracy: first.accuracy,
            samples_a_second,
            all_gather: first.all_gather,
            reduce_scatter: first.reduce_scatter,
            all_reduce: first.all_reduce,
            averages: first.averages,
            replays: first.replays,
            kept: first.kept,
            loss_difference: losses.map(or_infinite).fold(0.0, f64::max),
            gradient_difference: or_infinite(gradient),
            bounds: Bounds::of(options, first.averages),
        })
    }

    /// The losses of the ranks and of one rank, step by step.
    pub(crate) fn plot(&self, single: &[Step]) -> Plot {
        let Self { ranks, dtype, .. } = self;
        let title = format!("{ranks} ranks in {dtype}, backend {}", self.backend);
        let mut plot = Plot::new(title, "steps").of("mean loss of the micro-batches");
        plot.curve(format!("{ranks} ranks:"), self.loss.clone());
        let single = single.iter().map(|step| step.loss);
        plot.curve("one rank:", single.collect());
        plot
    }

    /// What must not be, in words.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let Bounds { losses, gradient } = self.bounds;
        for (what, found, bound) in [
            ("losses", self.loss_difference, losses),
            (
                "the first gradient",
                self.gradient_difference,
                Some(gradient),
            ),
        ] {
            // What is no number at all is wrong whatever is claimed.
            let bound = bound.unwrap_or(f64::MAX);
            if found > bound {
                faults.push(format!(
                    "{what}: {found:.2e} from one rank that folds the micro-batches, may be {bound:.2e}"
                ));
            }
        }
        if self.kept.held_bytes > 0 {
            faults.push("memory was held when symmetric memory was switched".to_owned());
        }
        if self.kept.left_bytes.is_some_and(|left| left > 0) {
            faults.push("memory was left behind".to_owned());
        }
        faults
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} parameters in {}, {} ranks, backend {}",
            self.parameters, self.dtype, self.ranks, self.backend
        )?;
        let last = self.loss.len().saturating_sub(1);
        for (step, loss) in self.loss.iter().enumerate() {
            if step % 50 == 0 || step == last {
                let norm = self.gradient_norm[step];
                writeln!(f, "step {step:>5}: loss {loss:.4}, gradient {norm:.4}")?;
            }
        }
        writeln!(
            f,
            "accuracy {:.3}, {:.0} samples/s",
            self.accuracy, self.samples_a_second
        )?;
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["collective", "zero-copy", "staged", "direct", "fallback"]);
        for (name, paths) in [
            ("all-gather", self.all_gather),
            ("reduce-scatter", self.reduce_scatter),
            ("all-reduce", self.all_reduce),
        ] {
            let counts = [paths.zero_copy, paths.staged, paths.direct, paths.fallback];
            let counts = counts.map(|count| count.to_string());
            table.add_row([name.to_owned()].into_iter().chain(counts));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(f, "{table}")?;
        writeln!(
            f,
            "averaged by the collective: {}, by the optimiser: {}",
            self.averages.by_collective, self.averages.by_optimiser
        )?;
        if self.replays > 0 {
            writeln!(f, "replays of a captured step: {}", self.replays)?;
        }
        writeln!(
            f,
            "bytes kept: {} of scratch, {} of tensors",
            self.kept.scratch_bytes, self.kept.tensor_bytes
        )?;
        write!(
            f,
            "from one rank that folds the micro-batches: losses {:.2e}, first gradient {:.2e}",
            self.loss_difference, self.gradient_difference
        )?;
        match self.bounds.losses {
            Some(bound) => write!(f, " (may be {bound:.2e} and {:.2e})", self.bounds.gradient),
            None => write!(
                f,
                " (losses of batches below {BOUNDED_BATCH} may be anything where sums are in another \
                 order; `--exact` compares their bits)"
            ),
        }
    }
}

/// What is not a number is as far away as can be.
fn or_infinite(difference: f64) -> f64 {
    match difference.is_nan() {
        true => f64::INFINITY,
        false => difference,
    }
}
