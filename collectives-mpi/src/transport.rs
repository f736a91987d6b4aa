//! How the engine's operations go through MPI.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use collectives_core::collective::Collective;
use collectives_core::communicator::Capabilities;
use collectives_core::error::{Error, Misuse, Result, Unsupported};
use collectives_core::path::PathTable;
use collectives_host::engine::{Health, Ranks, Transport};

use crate::environment::{Mpi, Threads};
use crate::error::BACKEND;
use crate::folded::Work;
use crate::group::{self, Group};
use crate::raw::Comm;
use crate::watchdog::Flight;
use crate::{messages, movement, reductions};

/// Tags that MPI has at least.
const TAGS: c_int = 1 << 14;

/// One rank's way to its peers: an MPI communicator.
#[derive(Debug)]
pub struct MpiTransport {
    mpi: &'static Mpi,
    group: Group,
    health: Arc<Health>,
    flight: Arc<Flight>,
    work: Mutex<Work>,
    freed: AtomicBool,
}

impl MpiTransport {
    /// MPI itself.
    #[must_use]
    pub fn mpi(&self) -> &'static Mpi {
        self.mpi
    }

    /// # Safety
    ///
    /// As for [`Transport::run`].
    unsafe fn single(&self, call: &Collective<'_>) -> Result<()> {
        if call.is_empty() {
            return Ok(());
        }
        if call.reduction().is_none() {
            // SAFETY: By the caller.
            return unsafe { movement::run(&self.group, call) };
        }
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: By the caller.
        unsafe { reductions::run(&self.group, call, &mut work) }
    }
}

impl Transport for MpiTransport {
    const BACKEND: &'static str = BACKEND;

    fn join(ranks: &Ranks, deadline: Duration) -> Result<Self> {
        let mpi = Mpi::initialize()?;
        let bootstrap = &ranks.bootstrap;
        let me = bootstrap.rank().index();
        // Rank 0's count of communicators keeps two that are made at once apart.
        static MADE: AtomicI32 = AtomicI32::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed) % TAGS;
        let in_rank_order = group::is_in_rank_order();
        let words = [
            c_int::try_from(mpi.rank().0).unwrap_or(c_int::MAX),
            c_int::try_from(mpi.world_size()).unwrap_or(c_int::MAX),
            made,
            c_int::from(in_rank_order),
        ];
        let mine: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let all = bootstrap.all_gather("mpi/join", &mine, deadline)?;
        let (members, tag) = members(&all)?;
        let _turn = mpi.turn();
        let flight = Flight::watched(bootstrap.rank(), Arc::clone(&ranks.health))?;
        let comm = {
            let _airborne = flight.begin(&[], deadline);
            Comm::world().create_group(&members, tag)?
        };
        Ok(Self {
            mpi,
            group: Group::new(comm, me, members.len(), in_rank_order),
            health: Arc::clone(&ranks.health),
            flight,
            work: Mutex::default(),
            freed: AtomicBool::new(false),
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // The engine knows.
            symmetric: Err(Unsupported::SymmetricMemory(String::new())),
            paths: PathTable::default(),
            drains: true,
            compares_calls: false,
            forces_kernels: false,
            world: 1..=c_int::MAX as usize,
        }
    }

    fn is_serial(&self) -> bool {
        self.mpi.threads() == Threads::Serialized
    }

    unsafe fn run(&self, calls: &[Collective<'_>], deadline: Duration) -> Result<()> {
        self.mpi.check_alive()?;
        let _turn = self.mpi.turn();
        let _airborne = self.flight.begin(calls, deadline);
        if let [call] = calls
            && !call.kind().is_point_to_point()
        {
            // SAFETY: By the caller.
            return unsafe { self.single(call) };
        }
        // SAFETY: By the caller; the requests are waited for below, or as they are dropped.
        let posted = unsafe { messages::post(&self.group, calls) }?;
        let collectives = calls.iter().filter(|call| !call.kind().is_point_to_point());
        let mut met = Ok(());
        for call in collectives {
            // SAFETY: By the caller.
            met = met.and_then(|()| unsafe { self.single(call) });
        }
        met.and(messages::settle(posted))
    }

    unsafe fn meet(&self, call: &Collective<'_>, deadline: Duration) -> Result<()> {
        self.mpi.check_alive()?;
        let _turn = self.mpi.turn();
        let _airborne = self.flight.begin(std::slice::from_ref(call), deadline);
        self.group.comm.barrier()
    }

    unsafe fn compare(&self, _calls: &[Collective<'_>], _deadline: Duration) -> Result<()> {
        Ok(())
    }

    /// Whoever is inside MPI cannot be reached; the watchdog sees it.
    fn interrupt(&self) {}

    /// Gives the MPI communicator back, unless it failed: a peer may still be inside it.
    fn close(&self) {
        let first = !self.freed.swap(true, Ordering::AcqRel);
        if !first || self.health.is_broken() || self.mpi.check_alive().is_err() {
            return;
        }
        let _turn = self.mpi.turn();
        if let Err(error) = self.group.comm.free() {
            tracing::warn!(%error, "an MPI communicator could not be given back");
        }
    }
}

/// The ranks of the job that take part, and a tag that they have in common.
fn members(all: &[Vec<u8>]) -> Result<(Vec<c_int>, c_int)> {
    let mut members = Vec::with_capacity(all.len());
    let mut tag = 0;
    let mut worlds = Vec::new();
    let mut orders = Vec::new();
    for (rank, bytes) in all.iter().enumerate() {
        let garbled = || Misuse::Other(format!("rank {rank} sent a garbled record"));
        let words: Vec<_> = bytes
            .chunks_exact(4)
            .filter_map(|word| Some(c_int::from_le_bytes(word.try_into().ok()?)))
            .collect();
        let &[of_job, world_size, made, order] = &words[..] else {
            return Err(garbled().into());
        };
        if rank == 0 {
            tag = made;
        }
        members.push(of_job);
        worlds.push(world_size);
        orders.push(order);
    }
    let mut distinct = members.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() != members.len() || worlds.iter().any(|&size| size != worlds[0]) {
        return Err(strangers(&worlds));
    }
    if let Some(rank) = orders.iter().position(|&order| order != orders[0]) {
        return Err(Error::config(format!(
            "rank {rank} and rank 0 do not say the same of summing in the order of ranks"
        )));
    }
    Ok((members, tag))
}

#[cold]
fn strangers(worlds: &[c_int]) -> Error {
    Error::config(format!(
        "the {} ranks are not of one MPI job: MPI sees worlds of {worlds:?} ranks. Start them all \
         with one launcher, the one that belongs to the MPI this program was built with",
        worlds.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record([rank, size, tag]: [c_int; 3]) -> Vec<u8> {
        ordered([rank, size, tag, 0])
    }

    fn ordered(words: [c_int; 4]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn members_are_in_the_order_of_the_control_plane() {
        let all = [record([2, 4, 9]), record([0, 4, 5])];
        assert_eq!(members(&all).unwrap(), (vec![2, 0], 9));
    }

    #[test]
    fn ranks_that_order_sums_differently_are_no_world() {
        let all = [
            ordered([0, 3, 7, 1]),
            ordered([1, 3, 8, 1]),
            ordered([2, 3, 9, 0]),
        ];
        assert!(members(&all[..2]).is_ok());
        let text = members(&all).unwrap_err().to_string();
        assert!(text.contains("rank 2"), "{text}");
    }

    #[test]
    fn several_jobs_are_no_world() {
        let all = [record([0, 1, 0]), record([0, 1, 0])];
        let text = members(&all).unwrap_err().to_string();
        assert!(
            text.contains("not of one MPI job") && text.contains("[1, 1]"),
            "{text}"
        );
        assert!(members(&[record([0, 2, 0]), record([1, 3, 0])]).is_err());
        assert!(members(&[vec![1, 2, 3]]).is_err());
    }
}
