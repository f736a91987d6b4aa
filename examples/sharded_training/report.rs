//! The figures, as text and as JSON.

use std::error::Error;
use std::fmt;

use collectives_examples::plot::Plot;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::options::{Compute, Options};
use crate::outcome::{Averages, Kept, Outcome, Paths, Step};

/// How far losses in bf16 may be, at any step, from those of one rank whose sums stay `f32`. The sums
/// of gradients are rounded to eight bits, and Adam carries on what that changes: with layers and batches
/// as they are by default, differences up to 0.08 were seen over seeds and numbers of ranks while losses
/// fell from 0.69, and 0.13 with other widths. Batches of a few samples differ by more, up to 0.68 was seen,
/// without anything being wrong but the bound; `--exact` needs none.
const LOSS_BOUND: f64 = 0.15;
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
    bound: (f64, f64),
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
            backend: options.backend.name(),
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
            bound: match options.dtype {
                _ if options.exact => (0.0, 0.0),
                Compute::F32 if options.backend.sums_in_rank_order() => (0.0, 0.0),
                _ => (LOSS_BOUND, GRADIENT_BOUND),
            },
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
        for (what, found, bound) in [
            ("losses", self.loss_difference, self.bound.0),
            ("the first gradient", self.gradient_difference, self.bound.1),
        ] {
            if found > bound {
                let hint = match bound {
                    0.0 => "",
                    _ => "; noisy batches may differ by more, and `--exact` must not differ at all",
                };
                faults.push(format!(
                    "{what}: {found:.2e} from one rank that folds the micro-batches, may be {bound:.2e}{hint}"
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
        )
    }
}

/// What is not a number is as far away as can be.
fn or_infinite(difference: f64) -> f64 {
    match difference.is_nan() {
        true => f64::INFINITY,
        false => difference,
    }
}
