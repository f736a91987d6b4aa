//! Figures: leases, look-ups and host collectives, beside what limits them and beside MPI.
//!
//! ```text
//! cargo bench -p collectives-examples --bench figures -- [--quick] [--json FILE] [--no-peers]
//!     [--sizes 8,64KiB,…] [--ranks 2,4] [--rounds N] [--patience SECONDS]
//!     [--section lease,lookup,host]
//! ```
//!
//! Nothing here fails because of a time. Every target is printed beside its figure, with whether
//! it was met; what is compared comes from the same run, and from the same placement of the two
//! cores, which move between "near" and "far" on a virtual machine (the ping-pong P tells). Run
//! nothing else meanwhile.
//!
//! * Operations are timed in batches of back-to-back ones, each on operands of its own, whose
//!   inputs were rewritten before, outside the timed region. A batch takes as long as its slowest
//!   rank; the figure is the 25th percentile over batches, the best of all rounds, for us and for
//!   the peers alike. Results are checked.
//! * All-reduce, all-gather and broadcast are in place. Sizes are those of the larger operand.
//! * Ranks that are processes work on private buffers, which others reach through copies; their figure is
//!   beside those of ranks that are threads, and the peers are the same.
//! * System calls of the hot path are counted where `strace` is installed, by running
//!   `strace -f -c figures --spin-hits 1000000`, and the same with 0 hits, which is the set-up.

mod allocator;
mod case;
mod clock;
mod copy_limit;
mod gate;
mod handle;
mod hit;
mod host;
mod lease;
mod lookup;
mod machine;
mod mpi;
mod operands;
mod options;
mod pingpong;
mod processes;
mod quiet;
mod row;
mod sample;
mod syscalls;
mod table;
mod target;
mod watchdog;

use std::error::Error;
use std::fs;
use std::time::Instant;

use collectives_core::collective::OpKind;
use collectives_core::dtype::DType;
use serde::Serialize;

use crate::case::Case;
use crate::lease::Lease;
use crate::lookup::Lookup;
use crate::machine::Machine;
use crate::mpi::{Peer, Peers};
use crate::options::{Options, Section};
use crate::row::Row;

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

/// Everything one run measured, in nanoseconds.
#[derive(Debug, Serialize)]
struct Figures {
    machine: Machine,
    peers: Vec<Peer>,
    lease: Option<Lease>,
    lookup: Option<Lookup>,
    host: Vec<Row>,
}

fn main() -> Result<(), Box<dyn Error>> {
    processes::dispatch();
    let options = Options::from_command_line();
    if let Some(hits) = options.spin_hits {
        return Ok(lease::spin(hits)?);
    }
    let machine = Machine::look();
    println!(
        "{}, {} cores, {}, {}",
        machine.processor, machine.cores, machine.system, machine.compiler
    );
    if let Some(load) = machine.load.filter(|&load| load > 0.5) {
        println!("WARNING: others use this machine, the load is {load}; the figures suffer.");
    }
    let mut figures = Figures {
        machine,
        peers: Vec::new(),
        lease: None,
        lookup: None,
        host: Vec::new(),
    };
    if options.wants(Section::Lease) {
        quiet::wait(Instant::now() + options.patience());
        let lease = lease::measure(options.quick)?;
        table::lease(&lease);
        figures.lease = Some(lease);
    }
    if options.wants(Section::Lookup) {
        quiet::wait(Instant::now() + options.patience());
        let lookup = lookup::measure(options.quick)?;
        table::lookup(&lookup);
        figures.lookup = Some(lookup);
    }
    if options.wants(Section::Host) {
        let peers = Peers::build(!options.no_peers);
        table::peers(&peers.all);
        figures.host = host_rows(&options, &peers)?;
        figures.peers.clone_from(&peers.all);
    }
    if let Some(path) = &options.json {
        fs::write(path, serde_json::to_string_pretty(&figures)?)?;
    }
    Ok(())
}

fn host_rows(options: &Options, peers: &Peers) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut all = Vec::new();
    for &ranks in &options.ranks {
        let mut run = |title: &str, cases: &[Case]| -> Result<(), Box<dyn Error>> {
            let mut rows = Vec::new();
            for case in cases {
                let effort = options.effort(case.bytes);
                rows.extend(row::measure(
                    case,
                    case.shape(options.quick),
                    effort,
                    peers,
                )?);
            }
            table::rows(&format!("{title}, {ranks} ranks"), &rows, &peers.all);
            all.extend(rows);
            Ok(())
        };
        let case = |operation, dtype, bytes| Case {
            operation,
            dtype,
            bytes,
            ranks,
        };
        for dtype in [DType::F32, DType::Bf16] {
            let sizes = options.sizes().into_iter();
            let cases: Vec<_> = sizes
                .map(|bytes| case(OpKind::AllReduce, dtype, bytes))
                .collect();
            run(&format!("all-reduce {dtype}"), &cases)?;
        }
        let others = [OpKind::ReduceScatter, OpKind::AllGather, OpKind::Broadcast];
        let mut cases = others
            .map(|operation| case(operation, DType::F32, 1 << 20))
            .to_vec();
        cases.push(case(OpKind::Barrier, DType::F32, 0));
        run("others f32", &cases)?;
    }
    Ok(all)
}
