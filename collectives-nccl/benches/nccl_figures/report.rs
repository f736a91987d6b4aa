//! The figures as text, with what they should be.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::growth::{self, Growth};
use crate::host::HostTime;
use crate::point::Point;
use crate::registration::Registration;
use crate::units::{self, Unit};

/// Everything of one world size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) nccl: String,
    pub(crate) ranks: usize,
    pub(crate) gpus: usize,
    pub(crate) rounds: usize,
    /// How long `Auto` was calibrated, in seconds, if it was.
    pub(crate) calibrated: Option<f64>,
    pub(crate) points: Vec<Point>,
    pub(crate) host: Vec<HostTime>,
    pub(crate) registration: Vec<Registration>,
    pub(crate) growth: Vec<Growth>,
    pub(crate) units: Vec<Unit>,
}

impl Point {
    /// What a call may take more than the same by hand: half a microsecond below 64 KiB, one
    /// percent from 1 MiB on, and at least what the call by hand differs from itself.
    fn allowed(&self, by_hand: f64, spread: f64) -> Option<f64> {
        let stated = match self.bytes {
            0..0x1_0000 => 0.5,
            0x10_0000.. => by_hand * 0.01,
            _ => return None,
        };
        Some(f64::max(stated, spread))
    }

    fn verdict(over: f64, allowed: Option<f64>) -> &'static str {
        match allowed {
            None => "",
            Some(allowed) if over <= allowed => "met",
            Some(_) => "MISSED",
        }
    }

    /// Whether a call of ours is the same kernels as the one by hand.
    fn same_kernels(&self) -> &'static str {
        let of = |name: &str| {
            let found = self.kernels.iter().find(|(variant, _)| variant == name);
            found.map(|(_, kernels)| kernels)
        };
        match (of("ZeroCopy"), of("Staged"), of("ZeroCopyByHand")) {
            (Some(zero_copy), Some(staged), Some(by_hand)) => {
                match zero_copy == by_hand && of("StagedByHand") == Some(staged) {
                    true => "same",
                    false => "DIFFER",
                }
            }
            _ => "",
        }
    }
}

impl Report {
    fn calls(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "rounds: {}; microseconds of one all-reduce of bf16",
            self.rounds
        )?;
        if let Some(seconds) = self.calibrated {
            writeln!(f, "`Auto` was calibrated in {seconds:.1} s")?;
        }
        writeln!(
            f,
            "| bytes | in | zero-copy | by hand | over | | staged | by hand | over | | events add | \
             direct | auto | takes | over best | | spread | staged | kernels |"
        )?;
        writeln!(f, "|{}", "---|".repeat(19))?;
        for point in &self.points {
            let best = f64::min(point.direct, point.staged + point.events_over);
            let spread = f64::max(point.spread, point.staged_spread);
            let auto = Some(f64::max(best * 0.03, spread));
            let zero_copy = point.allowed(point.zero_copy_by_hand, point.spread);
            let staged = point.allowed(point.staged_by_hand, point.staged_spread);
            writeln!(
                f,
                "| {} | {} | {:.2} | {:.2} | {:+.2} | {} | {:.2} | {:.2} | {:+.2} | {} | {:+.2} | \
                 {:.2} | {:.2} | {} | {:+.2} | {} | {:.2} | {:.2} | {} |",
                point.bytes,
                if point.graph { "graph" } else { "eager" },
                point.zero_copy,
                point.zero_copy_by_hand,
                point.zero_copy_over,
                Point::verdict(point.zero_copy_over, zero_copy),
                point.staged,
                point.staged_by_hand,
                point.staged_over,
                Point::verdict(point.staged_over, staged),
                point.events_over,
                point.direct,
                point.auto,
                point.auto_path,
                point.auto_over,
                Point::verdict(point.auto_over, auto),
                point.spread,
                point.staged_spread,
                point.same_kernels(),
            )?;
        }
        writeln!(f, "\nhost time of a call of 16 bytes, microseconds:")?;
        for host in &self.host {
            writeln!(f, "| {} | {:.2} |", host.variant, host.microseconds)?;
        }
        writeln!(
            f,
            "\na window, milliseconds: | bytes | allocate | register | retire |"
        )?;
        for window in &self.registration {
            writeln!(
                f,
                "| {} | {:.2} | {:.2} | {:.2} |",
                window.bytes, window.allocate, window.register, window.retire
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "NCCL {}, ranks: {}, GPUs: {}",
            self.nccl, self.ranks, self.gpus
        )?;
        if !self.points.is_empty() {
            self.calls(f)?;
        }
        write!(
            f,
            "{}{}",
            growth::Table(&self.growth),
            units::Table(&self.units)
        )
    }
}
