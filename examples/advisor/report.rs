//! The figures of all policies as a table.

use collectives_alloc::replay::Totals;
use comfy_table::{CellAlignment, Table, presets};

use crate::candidate::Candidate;

/// A row for each policy.
pub(crate) fn table(candidates: &[Candidate]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "policy",
        "kept",
        "most kept",
        "kept / largest",
        "registrations while serving",
        "hit rate",
        "not staged",
    ]);
    for candidate in candidates {
        let Candidate { name, totals, .. } = candidate;
        table.add_row([
            name.clone(),
            mebibytes(candidate.kept()),
            mebibytes(totals.peak_mapped_bytes),
            ratio(
                candidate.kept() as u64,
                totals.largest_request as u64,
                1.0,
                2,
            ),
            totals.growths.to_string(),
            ratio(totals.hits, totals.requests, 100.0, 3) + " %",
            not_staged(totals).to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn not_staged(totals: &Totals) -> u64 {
    totals.fallbacks + totals.refusals
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn ratio(part: u64, whole: u64, of: f64, digits: usize) -> String {
    format!("{:.digits$}", part as f64 / whole.max(1) as f64 * of)
}

pub(crate) fn mebibytes(bytes: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    format!("{mebibytes:.2} MiB")
}
