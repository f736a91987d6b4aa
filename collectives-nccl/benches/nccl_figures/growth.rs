//! What growing scratch costs, by policy and size.

use std::fmt;
use std::time::{Duration, Instant};

use collectives_alloc::bytes::ByteSize;
use collectives_alloc::config::ScratchConfig;
use collectives_core::addr::WindowId;
use collectives_core::agreement::Record;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Misuse, Result};
use collectives_core::layered::{Layer, Layered, symmetric_of};
use collectives_core::memory::Memory;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_nccl::communicator::NcclCommunicator;
use serde::{Deserialize, Serialize};

use crate::point::median;

/// What scratch grows to, one after another.
const SIZES: [usize; 4] = [2 << 20, 8 << 20, 32 << 20, 128 << 20];
const TIMES: usize = 7;
const POLICIES: [&str; 6] = [
    "exact",
    "replace",
    "geometric",
    "geometric-class",
    "reserved",
    "arena",
];

/// One growth, from the size before, on one rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Growth {
    pub(crate) policy: String,
    pub(crate) bytes: usize,
    pub(crate) times: Times,
}

/// Milliseconds of one growth.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Times {
    /// From the request on, until all of it is done.
    pub(crate) whole: f64,
    /// Of that: making physical memory, and mapping it and what is kept.
    pub(crate) map: f64,
    pub(crate) register: f64,
    /// Of windows that the growth replaced.
    pub(crate) retire: f64,
    /// Ranks agreeing on it, which includes waiting for the slowest.
    pub(crate) agree: f64,
}

/// Adds up what the calls of one growth take.
#[derive(Debug, Default)]
struct Clock(Times);

/// Milliseconds since then.
fn since(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

impl Layer for Clock {
    fn agree(
        &mut self,
        inner: &mut dyn Communicator,
        mine: &Record,
        deadline: Duration,
    ) -> Result<Vec<Record>> {
        let begun = Instant::now();
        let agreed = inner.agree(mine, deadline);
        self.0.agree += since(begun);
        agreed
    }

    fn allocate(
        &mut self,
        inner: &mut dyn Communicator,
        bytes: usize,
        extend: Option<WindowId>,
    ) -> Result<Memory> {
        let begun = Instant::now();
        let allocated = symmetric_of(inner)?.allocate(bytes, extend);
        self.0.map += since(begun);
        allocated
    }

    fn register(&mut self, inner: &mut dyn Communicator, memory: &Memory) -> Result<WindowId> {
        let begun = Instant::now();
        let registered = symmetric_of(inner)?.register(memory);
        self.0.register += since(begun);
        registered
    }

    fn retire(&mut self, inner: &mut dyn Communicator, window: WindowId) -> Result<()> {
        let begun = Instant::now();
        let retired = symmetric_of(inner)?.retire(window);
        self.0.retire += since(begun);
        retired
    }

    fn for_child(&self) -> Self {
        Self::default()
    }
}

type Timed = Layered<Clock, NcclCommunicator>;

/// Grows the scratch of every policy through all sizes, several times.
pub(crate) fn measure(comm: NcclCommunicator) -> Result<Vec<Growth>> {
    let mut comm = Layered::new(Clock::default(), comm);
    let mut all = Vec::new();
    for policy in POLICIES {
        let mut rounds = Vec::new();
        for _ in 0..=TIMES {
            rounds.push(round(&mut comm, policy)?);
        }
        // The first makes what is made once.
        rounds.remove(0);
        for (index, bytes) in SIZES.into_iter().enumerate() {
            let part = |of: fn(&Times) -> f64| median(rounds.iter().map(|round| of(&round[index])));
            all.push(Growth {
                policy: policy.to_owned(),
                bytes,
                times: Times {
                    whole: part(|times| times.whole),
                    map: part(|times| times.map),
                    register: part(|times| times.register),
                    retire: part(|times| times.retire),
                    agree: part(|times| times.agree),
                },
            });
        }
    }
    let _ = comm.shutdown()?;
    Ok(all)
}

/// One policy through all sizes. `reserved` registers once, so that it begins anew for each.
fn round(comm: &mut Timed, policy: &str) -> Result<Vec<Times>> {
    let mut config = ScratchConfig::with_policy(policy);
    let mut times = Vec::new();
    if policy == "reserved" {
        for bytes in SIZES {
            config.max_request = Some(ByteSize::new(bytes));
            let mut scratch = config.build()?;
            times.push(grow(comm, &mut *scratch, bytes)?);
            give_back(comm, &mut *scratch)?;
        }
    } else {
        let mut scratch = config.build()?;
        for bytes in SIZES {
            times.push(grow(comm, &mut *scratch, bytes)?);
        }
        give_back(comm, &mut *scratch)?;
    }
    Ok(times)
}

fn grow(comm: &mut Timed, scratch: &mut dyn ScratchAllocator, bytes: usize) -> Result<Times> {
    let before = scratch.stats();
    comm.layer_mut().0 = Times::default();
    let begun = Instant::now();
    let _ = scratch.reserve(comm, &[Request::new(bytes)])?;
    let whole = since(begun);
    let registrations = scratch.stats().since(&before).registrations;
    if registrations != 1 {
        let why = format!(
            "{} registered {registrations} windows for {bytes} bytes, not one",
            scratch.name()
        );
        return Err(Misuse::Other(why).into());
    }
    Ok(Times {
        whole,
        ..comm.layer().0
    })
}

fn give_back(comm: &mut Timed, scratch: &mut dyn ScratchAllocator) -> Result<()> {
    let _ = scratch.close(comm)?;
    comm.device().collect();
    Ok(())
}

/// Growths as a table.
pub(crate) struct Table<'a>(pub(crate) &'a [Growth]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        writeln!(f, "\na growth of scratch, milliseconds:")?;
        writeln!(
            f,
            "| policy | to, MiB | whole | map | register | retire | agree |"
        )?;
        writeln!(f, "|{}", "---|".repeat(7))?;
        for growth in self.0 {
            let times = &growth.times;
            writeln!(
                f,
                "| {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
                growth.policy,
                growth.bytes >> 20,
                times.whole,
                times.map,
                times.register,
                times.retire,
                times.agree
            )?;
        }
        Ok(())
    }
}
