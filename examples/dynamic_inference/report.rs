//! The figures, as a table and as JSON.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::workload::Totals;

/// Everything one invocation measured.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) trace: String,
    pub(crate) ranks: usize,
    pub(crate) granule: usize,
    pub(crate) policies: Vec<Row>,
}

/// The figures of one policy: per rank, but for `wrong_elements`, which counts all ranks'.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    policy: String,
    capacity_bytes: usize,
    mapped_bytes: usize,
    largest_request_bytes: usize,
    mapped_over_largest: f64,
    registrations: u64,
    hits: u64,
    graphs: usize,
    replays: usize,
    pub(crate) wrong_elements: u64,
    seconds: f64,
}

impl Row {
    pub(crate) fn new(policy: &str, totals: &Totals) -> Self {
        let mapped = totals.stats.mapped_bytes();
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people to read")]
        let ratio = mapped as f64 / totals.largest_mapped.max(1) as f64;
        Self {
            policy: policy.to_owned(),
            capacity_bytes: totals.stats.capacity_bytes(),
            mapped_bytes: mapped,
            largest_request_bytes: totals.largest_request,
            mapped_over_largest: ratio,
            registrations: totals.stats.registrations,
            hits: totals.stats.hits,
            graphs: totals.graphs,
            replays: totals.replays,
            wrong_elements: totals.wrong_elements,
            seconds: totals.elapsed.as_secs_f64(),
        }
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
            "trace `{}`, ranks: {}, granule {}; figures per rank, wrong elements of all ranks",
            self.trace,
            self.ranks,
            mebibytes(self.granule)
        )?;
        write!(f, "{table}")
    }
}

fn mebibytes(bytes: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    format!("{mebibytes:.2} MiB")
}
