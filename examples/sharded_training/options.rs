//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use collectives_alloc::config::ScratchConfig;
use collectives_core::collectives::Switch;
use collectives_core::error::Result;
use collectives_core::path::{Averaging, Fallback, Staging};
use collectives_examples::backend::{Ranks, Start};
use collectives_examples::scratch;

/// Trains a classifier whose parameters are sharded over ranks, and compares every step with one
/// rank that folds all micro-batches.
#[derive(Clone, Debug, Parser)]
#[command(name = "sharded_training", args_override_self = true)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) start: Start,

    /// Optimiser steps.
    #[arg(long, default_value_t = 300)]
    pub(crate) steps: usize,

    /// Samples of one rank's micro-batch.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) batch: u16,

    /// Width of the hidden layers.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) hidden: u16,

    /// Layers between the first and the last.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=64))]
    pub(crate) layers: u16,

    /// What the compute copies, gathered parameters and scattered gradients are made of.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dtype: Compute,

    /// Whether the collectives use symmetric memory.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) symmetric: Symmetric,

    /// Where the tensors live while symmetric memory is on.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) tensors: Tensors,

    /// Flips `--symmetric` between steps, every so many of them.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) flip: Option<u32>,

    /// How a layer that ranks do not divide is cut.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) shards: Shards,

    /// Keeps each shard inside the whole it is a part of.
    #[arg(long)]
    pub(crate) in_place: bool,

    /// How gradients are averaged.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) average: Average,

    /// Where everything but the collectives is computed: on the GPU with the backend `nccl`, else on the
    /// host, unless said.
    #[arg(long, value_enum)]
    pub(crate) arithmetic: Option<Place>,

    /// Captures a whole step as one graph, after the first and after each switch, and replays it. With
    /// arithmetic on the GPU.
    #[arg(long)]
    pub(crate) capture: bool,

    /// Rounds gradients so that their sums are exact in any order, and so the losses those of one rank in
    /// every bit. They are summed, and scaled by the optimiser.
    #[arg(long)]
    pub(crate) exact: bool,

    /// Fails where a collective on parameters or gradients cannot use symmetric memory.
    #[arg(long)]
    pub(crate) forbid_fallback: bool,

    /// Of the parameters, the data and the order of the samples.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,

    /// A TOML file with a `[scratch]` table. Variables `COLLECTIVES_SCRATCH_…` win over it.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) config: Option<PathBuf>,

    /// The policy of scratch, by the name configuration uses; wins over both.
    #[arg(long)]
    pub(crate) policy: Option<String>,

    /// Draws the losses of the ranks and of one rank, into an SVG file.
    #[arg(long)]
    pub(crate) plot: Option<PathBuf>,

    /// Prints JSON instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Options {
    /// Refuses what does not go together.
    pub(crate) fn check(&self) -> Result<(), String> {
        let on_host = self.place() == Place::Host;
        if !on_host && !self.start.backend.is_on_gpu() {
            let backend = self.start.backend.name();
            return Err(format!(
                "--arithmetic cuda needs tensors on a GPU, and those of backend {backend} are not"
            ));
        }
        if self.capture && on_host {
            return Err("--capture needs --arithmetic cuda: the host computes in no graph".into());
        }
        if self.exact && self.average == Average::Native {
            return Err("--exact needs sums, and --average native divides before them".into());
        }
        let scratch = self.scratch_config().and_then(|config| config.build());
        scratch.map(drop).map_err(|error| error.to_string())
    }

    /// Where everything but the collectives is computed.
    pub(crate) fn place(&self) -> Place {
        match self.arithmetic {
            Some(place) => place,
            #[cfg(target_os = "linux")]
            None if self.start.backend.is_on_gpu() => Place::Cuda,
            None => Place::Host,
        }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.start.ranks.into()
    }

    /// The configuration of scratch.
    pub(crate) fn scratch_config(&self) -> Result<ScratchConfig> {
        let mut config = scratch::configured(self.config.as_deref())?;
        if let Some(policy) = &self.policy {
            config.policy = Some(policy.clone());
        }
        config.validate()?;
        Ok(config)
    }

    /// How the ranks are started: streams are threads of their own, so that prefetches run while a rank
    /// computes.
    pub(crate) fn started(&self) -> Ranks {
        self.start.ranks().with_asynchronous_streams()
    }

    /// Whether symmetric memory is on in a step.
    pub(crate) fn is_symmetric_in(&self, step: usize) -> bool {
        let flips = self.flip.map_or(0, |every| step / every as usize);
        (self.symmetric == Symmetric::On) == flips.is_multiple_of(2)
    }

    /// The settings of the collectives while symmetric memory is on, or off.
    pub(crate) fn switch(&self, symmetric: bool) -> Switch {
        Switch {
            staging: match (symmetric, self.tensors) {
                (false, _) => Staging::Never,
                // Forced would stage tensors that lie in windows already.
                (true, Tensors::Pooled) => Staging::Auto,
                (true, Tensors::Ordinary) => Staging::Forced,
            },
            fallback: match self.forbid_fallback {
                true => Fallback::Forbid,
                false => Fallback::Allow,
            },
            averaging: match self.average {
                // An average may be divided before it is summed.
                _ if self.exact => Averaging::SumThenScale,
                Average::Auto => Averaging::Auto,
                Average::Native => Averaging::Native,
                Average::Sum => Averaging::SumThenScale,
            },
        }
    }
}

/// The element type of what is communicated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compute {
    #[default]
    F32,
    Bf16,
}

/// Where everything but the collectives is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Place {
    Host,
    #[cfg(target_os = "linux")]
    Cuda,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Symmetric {
    #[default]
    On,
    Off,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tensors {
    /// In symmetric buffers, registered once.
    #[default]
    Pooled,
    /// In ordinary memory, staged through scratch.
    Ordinary,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shards {
    /// The last ranks get less.
    #[default]
    Uneven,
    /// All get the same, the last of it padding.
    Padded,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Average {
    /// Natively, unless symmetric kernels only sum.
    #[default]
    Auto,
    /// By the collective.
    Native,
    /// As a sum, scaled by the optimiser.
    Sum,
}

impl AsMut<Start> for Options {
    fn as_mut(&mut self) -> &mut Start {
        &mut self.start
    }
}
