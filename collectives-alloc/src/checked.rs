//! Compares every call across ranks before anything is enqueued.

use std::time::Duration;

use collectives_core::addr::WindowId;
use collectives_core::agreement::Record;
use collectives_core::bootstrap::DEFAULT_DEADLINE;
use collectives_core::collective::Collective;
use collectives_core::communicator::{CommInfo, Communicator};
use collectives_core::error::{Error, Misuse, Result};
use collectives_core::layered::{Layer, Layered, symmetric_of};
use collectives_core::memory::Memory;
use collectives_core::rank::CommId;
use collectives_core::submission::Submission;

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
/// * whether the stream captures, and which kernels may be used;
/// * the size of memory that is registered, and the window that is retired;
/// * whether the call is valid: where it is [refused](Communicator::refused) on some ranks only, all
///   ranks get a mismatch in place of a hang.
///
/// A call that is refused on all ranks fails with each rank's own [`Misuse`]. A rank that does not call
/// at all is a [`Timeout`](collectives_core::error::ErrorKind::Timeout) on the others.
///
/// It does not look at messages: groups of nothing but sends and receives pass without a round,
/// because other ranks need not call at all, and those among collectives are left out. Nor at copies,
/// which differ between ranks and are each rank's own affair, nor at `split`
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

    fn compare(&mut self, inner: &mut dyn Communicator, kind: Kind<'_>) -> Result<()> {
        let mine = Mine::of(kind, inner.info());
        let records = self.exchange(inner, &mine)?;
        mine.verdict(&records)
            .map_err(|error| located(error, mine.name(), inner.info()))
    }

    /// Tells the others that this rank refuses the call; the error that it gets, and whether all of them
    /// refused theirs, each for its own reason.
    fn tell(&mut self, inner: &mut dyn Communicator, refusal: Error) -> (Error, bool) {
        match self.compare(inner, Kind::Refused) {
            Ok(()) => (refusal, true),
            Err(error) => (error.caused_by(refusal), false),
        }
    }

    fn exchange(&mut self, inner: &mut dyn Communicator, mine: &Mine<'_>) -> Result<Vec<Record>> {
        let records = inner.agree(&mine.record(), self.deadline)?;
        self.rounds += 1;
        Ok(records)
    }
}

fn located(error: Error, name: &'static str, info: &CommInfo) -> Error {
    let error = error.during(name);
    error.on_backend(info.backend).on_rank(info.rank)
}

/// Whether ranks must make this call together, so that it can be compared.
fn concerns_all(call: &Collective<'_>) -> bool {
    !call.kind().is_point_to_point()
}

/// Whether an operand names a window of another communicator.
fn is_foreign(call: &Collective<'_>, comm: CommId) -> bool {
    let mut windows = [call.send, call.recv]
        .into_iter()
        .filter_map(|side| side.window);
    windows.any(|slice| slice.comm != comm)
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
        submission: &Submission<'_>,
    ) -> Result<()> {
        let calls = submission.calls.iter().copied();
        let calls: Vec<_> = calls.filter(concerns_all).collect();
        if calls.is_empty() {
            return Ok(());
        }
        let comm = inner.info().id;
        if submission.calls.iter().any(|call| is_foreign(call, comm)) {
            // What is wrong on this rank alone must not keep it from the round.
            return Err(self.tell(inner, Misuse::UnknownWindow.into()).0);
        }
        let kind = Kind::Enqueue {
            calls: &calls,
            captures: submission.capture.is_some(),
            kernel: submission.kernel,
        };
        self.compare(inner, kind)
    }

    fn refused(
        &mut self,
        inner: &mut dyn Communicator,
        calls: &[Collective<'_>],
        error: Error,
    ) -> Error {
        if !calls.iter().any(concerns_all) {
            return inner.refused(calls, error);
        }
        match self.tell(inner, error) {
            // A layer inside hears of it on all ranks.
            (error, true) => inner.refused(calls, error),
            // Other ranks get the same mismatch here, and a layer inside never sees their call.
            (error, false) => error,
        }
    }

    fn register(&mut self, inner: &mut dyn Communicator, memory: &Memory) -> Result<WindowId> {
        let bytes = memory.bytes();
        self.compare(inner, Kind::Register { bytes })?;
        symmetric_of(inner)?.register(memory)
    }

    fn retire(&mut self, inner: &mut dyn Communicator, window: WindowId) -> Result<()> {
        self.compare(inner, Kind::Retire { window })?;
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
