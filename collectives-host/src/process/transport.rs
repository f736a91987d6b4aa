//! How operations of process ranks run: met over, compared, and moved through the segment.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::collective::Collective;
use collectives_core::communicator::Capabilities;
use collectives_core::error::{Error, ErrorKind, Misuse, Result, Unsupported};
use collectives_core::path::PathTable;
use collectives_core::rank::Rank;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::board::{self, Boards};
use super::letters::Letters;
use super::meeting;
use super::peers::Peers;
use super::segment::Segment;
use super::staged::Staged;
use crate::compare;
use crate::engine::fold::FoldScratch;
use crate::engine::{Health, Ranks, Transport};
use crate::fabric::lock;

/// The name of this backend in errors and reports.
const BACKEND: &str = "host-processes";

/// One rank's way to its peers: a segment that all of them map.
#[derive(Debug)]
pub struct ProcessTransport {
    shared: Shared,
    seat: Mutex<Seat>,
}

/// What waiting needs.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) segment: Segment,
    pub(super) health: Arc<Health>,
    pub(super) me: usize,
    peers: Peers,
}

/// What only the operation uses whose turn it is.
#[derive(Debug)]
struct Seat {
    /// The number of the last operation.
    number: u64,
    /// Steps of operations so far, the same on all ranks.
    steps: u64,
    letters: Letters,
    scratch: FoldScratch,
}

impl Shared {
    /// Waits as the [bell](super::segment::Head::wait) does, and lets messages get on meanwhile.
    pub(super) fn wait<R>(
        &self,
        letters: &mut Letters,
        mut poll: impl FnMut() -> Option<R>,
        mut tick: impl FnMut(Duration) -> Option<R>,
    ) -> R {
        let letters = std::cell::RefCell::new(letters);
        self.segment.head().wait(
            self.segment.ranks(),
            || {
                letters.borrow_mut().progress(self);
                poll()
            },
            |waited| {
                letters.borrow_mut().tick(self);
                tick(waited)
            },
        )
    }

    /// Looks for failures: what the control plane tells, processes that are gone, and ranks that are
    /// awaited but were shut down.
    pub(super) fn look(&self, awaited: impl IntoIterator<Item = usize>) {
        if self.health.failure().is_some() || self.ended() {
            return;
        }
        let gone = |&rank: &usize| self.segment.berth(rank).gone.load(Ordering::Acquire) != 0;
        if let Some(rank) = awaited.into_iter().find(gone) {
            self.health
                .note(Rank::new(rank), "it shut the communicator down", false);
        }
    }

    /// Whether a peer's process is gone, which fails the communicator. One that was shut down before
    /// may go.
    pub(super) fn ended(&self) -> bool {
        let Some(rank) = self.peers.ended() else {
            return false;
        };
        if self.segment.berth(rank).gone.load(Ordering::Acquire) != 0 {
            return false;
        }
        self.health
            .note(Rank::new(rank), "its process is gone", false);
        true
    }

    pub(super) fn failure(&self) -> Error {
        let lost = || Error::new(ErrorKind::System("the first failure is lost".to_owned()));
        self.health.failure().unwrap_or_else(lost)
    }
}

impl ProcessTransport {
    /// Meets the other ranks over these calls, and compares them.
    ///
    /// # Safety
    ///
    /// The operands are valid, unless the calls are captured.
    unsafe fn meet_over<'a>(
        &'a self,
        seat: &mut Seat,
        calls: &[Collective<'_>],
        deadline: Duration,
        is_captured: bool,
    ) -> Result<(Boards<'a>, Inside<'a>)> {
        let shared = &self.shared;
        seat.number += 1;
        let number = seat.number;
        let inside = Inside { shared, number };
        let segment = &shared.segment;
        let rank = Rank::new(shared.me);
        // SAFETY: By the caller; everybody has left the operation two before this one.
        let written = unsafe { board::write(segment, rank, number, calls, is_captured) };
        // The others must not wait for what this rank cannot say.
        let own =
            written.inspect_err(|error| self.shared.health.fail(&error.to_string(), false))?;
        meeting::meet(shared, &mut seat.letters, number, deadline)?;
        // SAFETY: All have arrived, and this rank leaves when `inside` is dropped.
        let boards = unsafe { Boards::read(segment, shared.me, number, own) };
        boards.make_ready_for_next(shared.me);
        if boards.are_alike() {
            return Ok((boards, inside));
        }
        compare::shapes(&boards)?;
        if let [_] = calls {
            compare::operations(&boards)?;
            return Ok((boards, inside));
        }
        for index in 0..calls.len() {
            // SAFETY: All groups have the same length.
            compare::operations(&unsafe { boards.member(index) })?;
        }
        Ok((boards, inside))
    }

    /// # Safety
    ///
    /// As for [`Transport::run`]; there is a call, and none is a message.
    unsafe fn collectives(
        &self,
        seat: &mut Seat,
        calls: &[Collective<'_>],
        deadline: Duration,
    ) -> Result<()> {
        // SAFETY: By the caller.
        let (boards, _inside) = unsafe { self.meet_over(seat, calls, deadline, false) }?;
        for (index, call) in calls.iter().enumerate() {
            let member;
            let boards = match calls {
                [_] => &boards,
                _ => {
                    // SAFETY: All groups have the same length.
                    member = unsafe { boards.member(index) };
                    &member
                }
            };
            let staged = Staged {
                shared: &self.shared,
                call,
                boards,
                letters: &mut seat.letters,
                steps: &mut seat.steps,
                scratch: &mut seat.scratch,
            };
            // SAFETY: By the caller.
            unsafe { staged.run() }?;
        }
        Ok(())
    }

    /// Waits for messages that are under way.
    fn deliver(&self, letters: &mut Letters) -> Result<()> {
        let shared = &self.shared;
        let head = shared.segment.head();
        let cell = std::cell::RefCell::new(letters);
        head.wait(
            shared.segment.ranks(),
            || {
                let mut letters = cell.borrow_mut();
                letters.progress(shared);
                letters.is_idle().then_some(())
            },
            |waited| {
                let mut letters = cell.borrow_mut();
                letters.tick(shared);
                if waited >= Duration::from_millis(5) {
                    let partners: Vec<_> = letters.partners(shared.me).collect();
                    shared.look(partners);
                }
                if shared.health.is_broken() {
                    letters.abandon(&shared.failure());
                }
                None
            },
        );
        cell.into_inner().take_failure()
    }
}

/// Inside an operation until it is dropped.
struct Inside<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        meeting::leave(self.shared, self.number);
    }
}

impl Transport for ProcessTransport {
    const BACKEND: &'static str = BACKEND;

    fn join(ranks: &Ranks, deadline: Duration) -> Result<Self> {
        let (bootstrap, neighbours) = (&ranks.bootstrap, &ranks.neighbours);
        if neighbours.machines() > 1 {
            let text = format!(
                "ranks that are processes share one machine, and these are on {}: use MPI",
                neighbours.machines()
            );
            return Err(Error::unsupported(Unsupported::Operation(text)));
        }
        let segment = segment(&**bootstrap, neighbours, deadline)?;
        let me = bootstrap.rank().index();
        Ok(Self {
            seat: Mutex::new(Seat {
                number: 0,
                steps: 0,
                letters: Letters::new(segment.ranks()),
                scratch: FoldScratch::default(),
            }),
            shared: Shared {
                segment,
                health: Arc::clone(&ranks.health),
                me,
                peers: Peers::new(neighbours.pids(), me),
            },
        })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // The engine knows.
            symmetric: Err(Unsupported::SymmetricMemory(String::new())),
            paths: PathTable::default(),
            drains: true,
            compares_calls: true,
            world: 1..=usize::MAX,
        }
    }

    unsafe fn run(&self, calls: &[Collective<'_>], deadline: Duration) -> Result<()> {
        let seat = &mut *lock(&self.seat);
        if calls.iter().all(|call| !call.kind().is_point_to_point()) {
            // SAFETY: By the caller.
            return unsafe { self.collectives(seat, calls, deadline) };
        }
        let (messages, others): (Vec<_>, Vec<_>) = calls
            .iter()
            .partition(|call| call.kind().is_point_to_point());
        // SAFETY: By the caller; they are delivered, or given up, before this returns.
        unsafe { seat.letters.post(self.shared.me, &messages, deadline) };
        let others: Vec<_> = others.into_iter().copied().collect();
        let met = match others.is_empty() {
            true => Ok(()),
            // SAFETY: By the caller.
            false => unsafe { self.collectives(seat, &others, deadline) },
        };
        let delivered = self.deliver(&mut seat.letters);
        met.and(delivered)
    }

    fn meet(&self, call: &Collective<'_>, deadline: Duration) -> Result<()> {
        let seat = &mut *lock(&self.seat);
        let calls = std::slice::from_ref(call);
        // SAFETY: Operands in windows are no payload of a board, so nothing is read.
        let met = unsafe { self.meet_over(seat, calls, deadline, false) };
        met.map(drop)
    }

    fn compare(&self, calls: &[Collective<'_>], deadline: Duration) -> Result<()> {
        let collectives: Vec<_> = calls
            .iter()
            .filter(|call| !call.kind().is_point_to_point())
            .copied()
            .collect();
        if collectives.is_empty() {
            return Ok(());
        }
        let seat = &mut *lock(&self.seat);
        // SAFETY: Captured calls have no payload on a board, so nothing is read.
        let met = unsafe { self.meet_over(seat, &collectives, deadline, true) };
        met.map(drop)
    }

    fn interrupt(&self) {
        self.shared.segment.head().ring();
    }

    fn close(&self) {
        let berth = self.shared.segment.berth(self.shared.me);
        berth.gone.store(1, Ordering::SeqCst);
        self.shared.segment.head().ring();
    }
}

/// The segment that rank 0 makes and the others map, once all of them can.
fn segment(
    bootstrap: &dyn Bootstrap,
    neighbours: &crate::engine::Neighbours,
    deadline: Duration,
) -> Result<Segment> {
    let ranks = bootstrap.world_size();
    let bytes = Segment::bytes(ranks);
    let system = |error: std::io::Error| {
        let text = format!("no memory that processes share: {error}");
        Error::new(ErrorKind::System(text)).caused_by(error)
    };
    let made = (bootstrap.rank() == Rank(0)).then(|| {
        let file = memfd_create("collectives-ranks", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, bytes as u64)?;
        let segment = Segment::create(&file, ranks)?;
        Ok::<_, std::io::Error>((file, segment))
    });
    let file = match &made {
        Some(Ok((file, _))) => file.as_raw_fd(),
        _ => -1,
    };
    let all = bootstrap.all_gather("process/segment", &file.to_le_bytes(), deadline)?;
    let told = all.first().and_then(|bytes| bytes.first_chunk::<4>());
    let told = told.map_or(-1, |bytes| i32::from_le_bytes(*bytes));
    let (mapped, _file) = match made {
        Some(made) => made
            .map(|(file, segment)| (Ok(segment), Some(file)))
            .unwrap_or_else(|error| (Err(system(error)), None)),
        None => {
            let mapping = neighbours.map(0, told, bytes);
            let segment = mapping.map(|mapping| Segment::at(mapping, ranks));
            (segment.map_err(system), None)
        }
    };
    // Rank 0 keeps the file open until everybody has looked.
    let mine = [u8::from(mapped.is_ok())];
    let all = bootstrap.all_gather("process/mapped", &mine, deadline)?;
    let segment = mapped?;
    match all.iter().position(|mapped| mapped != &[1]) {
        None => Ok(segment),
        Some(rank) => {
            let text = format!("rank {rank} cannot map the memory that the ranks share");
            Err(Misuse::Other(text).into())
        }
    }
}
