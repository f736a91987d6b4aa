//! The figures for people.

use comfy_table::{CellAlignment, Table, presets};

use crate::lease::Lease;
use crate::lookup::Lookup;
use crate::mpi::Peer;
use crate::row::{Row, Variant};
use crate::target::Check;

/// A table whose first column is text and whose others are numbers.
fn table(header: Vec<String>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).into()
}

/// Target, value and whether it was met.
fn checks(checks: &[Check]) -> Table {
    let mut table = table(words(["target", "came to", "met"]));
    for check in checks {
        table.add_row([
            check.target.clone(),
            number(check.value),
            verdict(check.met),
        ]);
    }
    table
}

pub(crate) fn lease(lease: &Lease) {
    println!("\n## Lease: a hit on an unclaimed slot, acquire and complete, ns\n");
    let mut table = table(words(["", "p50", "p99"]));
    let row =
        |name: &str, p50: f64, p99: Option<f64>| [name.to_owned(), number(Some(p50)), number(p99)];
    table.add_row(row(
        "batches of 64, divided",
        lease.batch_p50,
        Some(lease.batch_p99),
    ));
    table.add_row(row("single", lease.single_p50, Some(lease.single_p99)));
    table.add_row(row("one thread, batches", lease.one_thread, None));
    table.add_row(row(
        "two threads, batches, the slower",
        lease.two_threads,
        None,
    ));
    table.add_row(row(
        "the same in worlds that share nothing",
        lease.two_worlds,
        None,
    ));
    println!("{table}\n");
    println!(
        "Single hits: less {:.1} ns, what an empty pair of fenced clock reads takes; the clock \
         moves in steps of {:.1} ns.",
        lease.clock_overhead, lease.clock_step
    );
    let (allocations, hits) = (lease.heap_allocations, lease.counted_hits);
    println!("Heap allocations in {hits} hits: {allocations}.");
    match &lease.syscalls {
        Ok(calls) => println!(
            "System calls of the process: {} with {} hits, {} without.",
            calls.with_hits, calls.hits, calls.without_hits
        ),
        Err(why) => println!("System calls: not counted, {why}."),
    }
    println!("\n{}", checks(&lease.checks));
}

pub(crate) fn lookup(lookup: &Lookup) {
    println!(
        "\n## Look-up: `window_of` among {} windows, ns\n",
        lookup.windows
    );
    let mut table = table(words(["", "p50", "p99"]));
    let (p50, p99) = (
        number(Some(lookup.found_p50)),
        number(Some(lookup.found_p99)),
    );
    table.add_row(["in a window".to_owned(), p50, p99]);
    table.add_row([
        "in none".to_owned(),
        number(Some(lookup.missed_p50)),
        number(None),
    ]);
    println!("{table}\n\n{}", checks(&lookup.checks));
}

pub(crate) fn peers(peers: &[Peer]) {
    println!("\n## Host collectives, µs\n");
    for Peer { name, status, .. } in peers {
        println!("* {name}: {status}");
    }
    println!("* burn-collective: not installed");
    println!(
        "\nP: one way of a spin ping-pong, ns. F: the loads and stores without synchronisation. \
         B: the fastest peer."
    );
}

/// One table of cases that differ in size, or of different operations.
pub(crate) fn rows(title: &str, rows: &[Row], peers: &[Peer]) {
    println!("\n### {title}\n");
    let mut header = words([
        "",
        "P",
        "F",
        "enqueue",
        "handle",
        "zero-copy",
        "staged",
        "processes",
    ]);
    header.extend(peers.iter().map(|peer| peer.name.to_owned()));
    header.extend(words(["B/ours", "ours/F", "B/processes", "targets", "met"]));
    let mut table = table(header);
    for row in rows {
        let ours = row.ours(Variant::Enqueue);
        let ratio = |over: Option<f64>, under: Option<f64>| {
            number(over.zip(under).map(|(over, under)| over / under))
        };
        let mut cells = vec![label(row), one_way(row), micros(row.copy_limit)];
        let variants = [
            Variant::Enqueue,
            Variant::Handle,
            Variant::ZeroCopy,
            Variant::Staged,
            Variant::Processes,
        ];
        cells.extend(variants.map(|variant| micros(row.ours(variant))));
        cells.extend(peers.iter().map(|peer| micros(row.peer(peer.name))));
        cells.push(ratio(row.best_peer, ours));
        cells.push(ratio(ours, row.copy_limit));
        cells.push(ratio(row.best_peer, row.ours(Variant::Processes)));
        let each = |text: fn(&Check) -> String| {
            let lines: Vec<_> = row.checks.iter().map(text).collect();
            lines.join("\n")
        };
        cells.push(each(|check| check.target.clone()));
        cells.push(each(|check| {
            format!("{} ({})", verdict(check.met), number(check.value))
        }));
        table.add_row(cells);
    }
    println!("{table}");
}

fn label(row: &Row) -> String {
    let size = collectives_alloc::bytes::ByteSize::new(row.bytes);
    let what = match row.operation {
        "all_reduce" => size.to_string(),
        "barrier" => "barrier".to_owned(),
        other => format!("{other} {size}"),
    };
    let disturbed = if row.disturbed { ", disturbed" } else { "" };
    format!("{what}, {}{disturbed}", row.placement.name())
}

fn one_way(row: &Row) -> String {
    let (least, most) = row.one_way;
    format!("{least:.0}-{most:.0}")
}

fn micros(nanoseconds: Option<f64>) -> String {
    number(nanoseconds.map(|nanoseconds| nanoseconds / 1e3))
}

/// Three digits that matter.
fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(value) if value.abs() < 0.9995 => format!("{value:.3}"),
        Some(value) if value.abs() < 9.995 => format!("{value:.2}"),
        Some(value) if value.abs() < 99.95 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

fn verdict(met: Option<bool>) -> String {
    match met {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "-",
    }
    .to_owned()
}
