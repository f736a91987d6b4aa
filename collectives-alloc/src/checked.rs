//! Compares every call across ranks before anything is enqueued.

use std::time::Duration;

use collectives_core::addr::WindowId;
use collectives_core::bootstrap::DEFAULT_DEADLINE;
use collectives_core::collective::Collective;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Misuse, Result};
use collectives_core::layered::{Layer, Layered, symmetric_of};
use collectives_core::memory::Memory;
use collectives_core::stream::StreamRef;

use crate::config::ScratchConfig;

use self::call::{Kind, Mine};

mod call;
mod verdict;

/// A layer that makes ranks that disagree a typed error, the same on every rank, before anything
/// moves, on any backend.
///
/// Every call costs one [`agree`](Communicator::agree) round, on the host. It finds ranks that
/// differ in
///
/// * which of `enqueue`, `register` and `retire` they call;
/// * the number of collectives in a group, and for each of them the operation, element type,
///   reduction, root, count or counts vector, and for all-to-all what each rank sends to and expects
///   from each other;
/// * the window of each operand that has bytes, and its offset there (of an in-place all-gather,
///   gather, reduce-scatter or scatter, the offset less this rank's place);
/// * whether the stream captures;
/// * the size of memory that is registered, and the window that is retired;
/// * whether the call is valid: where [`Collective::check`] refuses a call on some ranks only, all
///   ranks get a mismatch in place of a hang.
///
/// A call that is refused alike on all ranks fails with its own [`Misuse`]. A rank that does not call
/// at all is a [`Timeout`](collectives_core::error::ErrorKind::Timeout) on the others.
///
/// It does not look at messages: groups of nothing but sends and receives pass without a round,
/// because other ranks need not call at all, and those among collectives are left out. Nor at `split`
/// and `shutdown`, the scalar of a pre-multiplied sum, streams and their order, the ends of leases,
/// the contents of buffers, or replays of graphs.
#[derive(Clone, Debug)]
pub struct Checked {
    deadline: Duration,
    rounds: u64,
}

impl Checked {
    /// The layer; ranks wait this long for each other.
    #[must_use]
    pub const fn new(deadline: Duration) -> Self {
        Self {
            deadline,
            rounds: 0,
        }
    }

    /// The layer around a communicator.
    pub fn around<C: Communicator>(self, comm: C) -> Layered<Self, C> {
        Layered::new(self, comm)
    }

    /// Calls compared so far.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }

    fn compare(&mut self, inner: &mut dyn Communicator, mine: Mine<'_>) -> Result<()> {
        let records = inner.agree(&mine.record(), self.deadline)?;
        self.rounds += 1;
        let info = inner.info();
        mine.verdict(&records).map_err(|error| {
            let error = error.during(mine.name());
            error.on_backend(info.backend).on_rank(info.rank)
        })
    }
}

impl Default for Checked {
    fn default() -> Self {
        Self::new(DEFAULT_DEADLINE)
    }
}

impl Layer for Checked {
    fn before_enqueue(
        &mut self,
        inner: &mut dyn Communicator,
        ops: &[Collective<'_>],
        stream: &StreamRef,
    ) -> Result<()> {
        let compared: Vec<_> = ops
            .iter()
            .filter(|op| !op.kind().is_point_to_point())
            .copied()
            .collect();
        if compared.is_empty() && !ops.is_empty() {
            return Ok(());
        }
        // What is wrong on this rank alone must not keep it from the round.
        let state = inner.device().capture_state(stream);
        let captures = matches!(state, Ok(Some(_)));
        let info = inner.info();
        let (rank, world_size, comm) = (info.rank, info.world_size, info.id);
        let valid = state.and_then(|_| {
            ops.iter().try_for_each(|op| {
                op.check(rank, world_size)?;
                let mut windows = [op.send, op.recv]
                    .into_iter()
                    .filter_map(|side| side.window);
                if windows.any(|slice| slice.comm != comm) {
                    return Err(Misuse::UnknownWindow.into());
                }
                Ok(())
            })
        });
        let kind = Kind::Enqueue {
            ops: &compared,
            captures,
        };
        self.compare(inner, Mine::new(kind, rank, world_size, valid))
    }

    fn register(&mut self, inner: &mut dyn Communicator, memory: &Memory) -> Result<WindowId> {
        let (rank, world_size) = (inner.info().rank, inner.info().world_size);
        let bytes = memory.bytes();
        self.compare(
            inner,
            Mine::new(Kind::Register { bytes }, rank, world_size, Ok(())),
        )?;
        symmetric_of(inner)?.register(memory)
    }

    fn retire(&mut self, inner: &mut dyn Communicator, window: WindowId) -> Result<()> {
        let (rank, world_size) = (inner.info().rank, inner.info().world_size);
        self.compare(
            inner,
            Mine::new(Kind::Retire { window }, rank, world_size, Ok(())),
        )?;
        symmetric_of(inner)?.retire(window)
    }

    /// True of collectives; what is not looked at is listed at [`Checked`].
    fn compares_calls(&self) -> bool {
        true
    }

    fn for_child(&self) -> Self {
        Self::new(self.deadline)
    }
}

impl ScratchConfig {
    /// The communicator, with [`Checked`] around it where `check` is set.
    #[must_use]
    pub fn decorate(&self, comm: Box<dyn Communicator>) -> Box<dyn Communicator> {
        if self.check {
            Box::new(Checked::new(self.agree_deadline).around(comm))
        } else {
            comm
        }
    }
}
