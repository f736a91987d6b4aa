//! The figures, as a table and as JSON.

use std::error::Error;
use std::fmt;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::outcome::Outcome;
use crate::trace::Trace;

/// Everything one invocation measured.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) backend: &'static str,
    pub(crate) trace: String,
    pub(crate) ranks: usize,
    pub(crate) policies: Vec<Row>,
}

/// The figures of one policy: per rank, but for `wrong_elements`, which counts all ranks'.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    policy: String,
    capacity_bytes: usize,
    mapped_bytes: usize,
    /// What the device lost to scratch, and to what library and driver keep for it, where the
    /// backend can tell.
    device_lost_bytes: Option<usize>,
    /// What of that did not come back when scratch was given back.
    device_lost_after_trim_bytes: Option<usize>,
    windows: usize,
    granule: usize,
    largest_request_bytes: usize,
    mapped_over_largest: f64,
    registrations: u64,
    hits: u64,
    graphs: usize,
    replays: usize,
    wrong_elements: u64,
    /// Of the bits of all results, in hexadecimal; equal for all policies.
    digest: String,
    accounted_for: bool,
    seconds: f64,
}

impl Row {
    /// Sums the ranks up, which must have kept the same.
    pub(crate) fn new(
        policy: &str,
        trace: &Trace,
        ranks: &[Outcome],
    ) -> Result<Self, Box<dyn Error>> {
        let first = ranks.first().ok_or("there are no ranks")?;
        for other in ranks {
            if other.kept != first.kept {
                return Err(format!("{policy}: ranks keep different slots").into());
            }
            if other.digest != first.digest {
                return Err(format!("{policy}: ranks have different results").into());
            }
        }
        let kept = &first.kept;
        let most = |of: fn(&Outcome) -> Option<usize>| ranks.iter().filter_map(of).max();
        let slowest = ranks.iter().map(|rank| rank.nanoseconds).max();
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people to read")]
        let ratio = kept.mapped as f64 / first.largest_mapped.max(1) as f64;
        #[expect(clippy::cast_precision_loss, reason = "for people to read")]
        let seconds = slowest.unwrap_or(0) as f64 / 1e9;
        Ok(Self {
            policy: policy.to_owned(),
            capacity_bytes: kept.capacity,
            mapped_bytes: kept.mapped,
            device_lost_bytes: most(|rank| rank.device_lost),
            device_lost_after_trim_bytes: most(|rank| rank.device_lost_after_trim),
            windows: kept.slots.len(),
            granule: first.granule,
            largest_request_bytes: trace.largest_request(),
            mapped_over_largest: ratio,
            registrations: kept.registrations,
            hits: kept.hits,
            graphs: trace.decodes.len(),
            replays: first.replays,
            wrong_elements: ranks.iter().map(|rank| rank.wrong_elements).sum(),
            digest: format!("{:016x}", first.digest),
            accounted_for: ranks.iter().all(Outcome::is_accounted_for),
            seconds,
        })
    }
}

impl Run {
    /// What must not be, in words.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for row in &self.policies {
            if row.wrong_elements > 0 {
                faults.push(format!("{}: wrong elements were found", row.policy));
            }
            if !row.accounted_for {
                faults.push(format!(
                    "{}: what the device lost and what scratch maps differ by more than a granule a \
                     window",
                    row.policy
                ));
            }
        }
        if self
            .policies
            .windows(2)
            .any(|pair| pair[0].digest != pair[1].digest)
        {
            faults.push("the policies have different results".to_owned());
        }
        faults
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([
            "policy",
            "capacity kept",
            "mapped kept",
            "device lost",
            "after a trim",
            "mapped / largest",
            "registrations",
            "hits",
            "graphs",
            "replays",
            "wrong elements",
            "seconds",
        ]);
        for row in &self.policies {
            table.add_row([
                row.policy.clone(),
                mebibytes(row.capacity_bytes),
                mebibytes(row.mapped_bytes),
                row.device_lost_bytes.map_or_else(String::new, mebibytes),
                row.device_lost_after_trim_bytes
                    .map_or_else(String::new, mebibytes),
                format!("{:.2}", row.mapped_over_largest),
                row.registrations.to_string(),
                row.hits.to_string(),
                row.graphs.to_string(),
                row.replays.to_string(),
                row.wrong_elements.to_string(),
                format!("{:.2}", row.seconds),
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(
            f,
            "trace `{}`, backend {}, ranks: {}, granule {}; figures per rank, wrong elements of all \
             ranks",
            self.trace,
            self.backend,
            self.ranks,
            mebibytes(self.policies.first().map_or(0, |row| row.granule))
        )?;
        write!(f, "{table}")
    }
}

fn mebibytes(bytes: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    format!("{mebibytes:.2} MiB")
}
