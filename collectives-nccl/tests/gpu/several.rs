//! One process that has several GPUs: a rank, which is a thread, for each.

use std::sync::Arc;
use std::thread;

use collectives_core::in_process::InProcess;
use collectives_nccl::device::CudaDevice;

use crate::rank::Ctx;
use crate::{Outcome, graphs, operations, scratch, windows};

/// What its ranks do, one after another.
const CASES: &[fn(&mut Ctx) -> Outcome] = &[
    operations::sums,
    operations::movement,
    operations::groups,
    operations::averages,
    operations::split,
    scratch::replace,
    scratch::geometric,
    scratch::arena,
    graphs::mixed,
    windows::extended,
    windows::peers,
];

/// Runs cases of processes between threads of rank 0, one for every GPU.
pub(crate) fn one_process(ctx: &mut Ctx) -> Outcome {
    if ctx.rank > 0 {
        return Ok(());
    }
    let gpus = CudaDevice::count();
    thread::scope(|scope| {
        let ends = InProcess::world(gpus).into_iter().enumerate();
        let ranks = ends.map(|(rank, end)| {
            scope.spawn(move || {
                let mut ctx = Ctx::of(rank, gpus, Arc::new(end))?;
                CASES.iter().try_for_each(|case| case(&mut ctx))
            })
        });
        // All of them run before the first is waited for.
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().try_for_each(|rank| {
            let panicked = |_| Err("a rank panicked".to_owned());
            rank.join().unwrap_or_else(panicked)
        })
    })
}
