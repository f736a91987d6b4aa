//! The cost of a lease on a hit: time, heap, and whether two communicators disturb each other.

use std::thread;

use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, Misuse, Result};
use collectives_host::communicator::HostCommunicator;
use collectives_host::world::HostWorld;
use serde::Serialize;

use crate::allocator::allocations;
use crate::clock::Clock;
use crate::gate::Gate;
use crate::hit::Hits;
use crate::sample::{Sample, smallest};
use crate::syscalls;
use crate::target::Check;

/// Hits that are timed together, so that the clock does not count.
const BATCH: usize = 64;

/// Nanoseconds of one lease and its end.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Lease {
    /// Batches of [`BATCH`] hits, divided.
    pub(crate) batch_p50: f64,
    pub(crate) batch_p99: f64,
    /// Single hits, less what an empty measurement takes.
    pub(crate) single_p50: f64,
    pub(crate) single_p99: f64,
    /// What was subtracted.
    pub(crate) clock_overhead: f64,
    /// The smallest difference the clock shows.
    pub(crate) clock_step: f64,
    /// Blocks of heap during `counted_hits` hits.
    pub(crate) heap_allocations: u64,
    pub(crate) counted_hits: u64,
    /// The p50 of batches when one thread works, and of the slower one when two do, each with a
    /// communicator and a pool of its own on one device.
    pub(crate) one_thread: f64,
    pub(crate) two_threads: f64,
    /// The same in two worlds that share nothing: what the processors alone make of it, which may be
    /// two threads of one core.
    pub(crate) two_worlds: f64,
    pub(crate) syscalls: Result<syscalls::Syscalls, String>,
    pub(crate) checks: Vec<Check>,
}

/// Measures in a world of one rank, whose communicator is split so that two share one device.
pub(crate) fn measure(quick: bool) -> Result<Lease> {
    let batches = if quick { 2_000 } else { 20_000 };
    let clock = Clock::calibrated();
    let (mut first, mut second) = two_communicators()?;
    let mut stranger = Hits::new(Box::new(one_rank()?))?;
    warm_up(&mut first)?;
    warm_up(&mut second)?;
    warm_up(&mut stranger)?;

    let (batch_p50, batch_p99) = best_of(5, || timed(&mut first, &clock, batches, BATCH))?;
    let (single_p50, single_p99) = best_of(5, || timed(&mut first, &clock, batches * 5, 1))?;
    let counted_hits = 100_000;
    let heap_allocations = count_heap(&mut first, counted_hits)?;

    let mut pairs = Vec::new();
    for _ in 0..5 {
        let (one_thread, _) = timed(&mut first, &clock, batches, BATCH)?;
        let two_threads = on_two_threads(&mut first, &mut second, &clock, batches)?;
        let two_worlds = on_two_threads(&mut first, &mut stranger, &clock, batches)?;
        pairs.push([one_thread, two_threads, two_worlds]);
    }
    let least = |index: usize| smallest(pairs.iter().map(|pair| pair[index])).unwrap_or(f64::NAN);
    let (one_thread, two_threads, two_worlds) = (least(0), least(1), least(2));
    let syscalls = syscalls::measure(if quick { 100_000 } else { 1_000_000 });

    let mut checks = vec![
        Check::below("p50, batches", 50.0, Some(batch_p50)),
        Check::below("p99, single", 200.0, Some(single_p99)),
        #[expect(clippy::cast_precision_loss, reason = "it should be none at all")]
        Check::at_most("heap allocations", 0.0, Some(heap_allocations as f64)),
    ];
    let per_hit = syscalls.as_ref().ok().map(|syscalls| syscalls.per_hit());
    checks.push(Check::below("system calls a hit", 0.001, per_hit));
    checks.push(Check::at_most(
        "two threads/one",
        1.5,
        Some(two_threads / one_thread),
    ));
    checks.push(Check::at_most(
        "two threads/two worlds",
        1.1,
        Some(two_threads / two_worlds),
    ));
    Ok(Lease {
        batch_p50,
        batch_p99,
        single_p50,
        single_p99,
        clock_overhead: clock.overhead(),
        clock_step: clock.step(),
        heap_allocations,
        counted_hits,
        one_thread,
        two_threads,
        two_worlds,
        syscalls,
        checks,
    })
}

/// Set-up and this many hits, for a tool that watches the process.
pub(crate) fn spin(hits: u64) -> Result<()> {
    let (mut first, _) = two_communicators()?;
    for _ in 0..hits {
        first.hit()?;
    }
    let (hits, registrations) = first.counts();
    println!("{hits} hits, {registrations} registrations");
    Ok(())
}

/// Pools on a communicator and on its child, which share a device.
pub(crate) fn two_communicators() -> Result<(Hits, Hits)> {
    let mut comm = one_rank()?;
    let child = comm.split(Some(0), 0)?;
    let child = child.ok_or_else(|| Error::from(Misuse::Other("no child".to_owned())))?;
    Ok((Hits::new(Box::new(comm))?, Hits::new(child)?))
}

fn one_rank() -> Result<HostCommunicator> {
    let ranks = HostWorld::new(1).connect()?;
    let first = ranks.into_iter().next();
    first.ok_or_else(|| Error::config("a world without ranks"))
}

fn warm_up(hits: &mut Hits) -> Result<()> {
    (0..10_000).try_for_each(|_| hits.hit())
}

/// The p50 and p99 of a hit, in nanoseconds.
fn timed(hits: &mut Hits, clock: &Clock, batches: usize, batch: usize) -> Result<(f64, f64)> {
    let mut times = Vec::with_capacity(batches);
    let mut result = Ok(());
    for _ in 0..batches {
        let taken = clock.single(|| {
            for _ in 0..batch {
                if let Err(error) = hits.hit() {
                    result = Err(error);
                }
            }
        });
        #[expect(clippy::cast_precision_loss, reason = "64 at most")]
        times.push(taken / batch as f64);
    }
    result?;
    let sample = Sample::new(times);
    Ok((sample.quantile(0.5), sample.quantile(0.99)))
}

/// The run with the smallest p99: whatever disturbs a run only adds to it.
fn best_of(runs: usize, mut run: impl FnMut() -> Result<(f64, f64)>) -> Result<(f64, f64)> {
    let all = (0..runs).map(|_| run()).collect::<Result<Vec<_>>>()?;
    let best = all
        .into_iter()
        .min_by(|left, right| left.1.total_cmp(&right.1));
    Ok(best.unwrap_or((f64::NAN, f64::NAN)))
}

fn count_heap(hits: &mut Hits, count: u64) -> Result<u64> {
    let before = allocations();
    for _ in 0..count {
        hits.hit()?;
    }
    Ok(allocations() - before)
}

/// The p50 of the slower of two threads that work at the same time.
fn on_two_threads(
    first: &mut Hits,
    second: &mut Hits,
    clock: &Clock,
    batches: usize,
) -> Result<f64> {
    let gate = Gate::new(2);
    let run = |hits| {
        gate.guard(|| {
            gate.pass()?;
            timed(hits, clock, batches, BATCH)
        })
    };
    let (first, second) = thread::scope(|scope| {
        let other = scope.spawn(|| run(second));
        let own = run(first);
        let other = other.join();
        (
            own,
            other.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        )
    });
    Ok(f64::max(first?.0, second?.0))
}
