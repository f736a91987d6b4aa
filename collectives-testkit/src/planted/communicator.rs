//! Bugs in the layer of a communicator.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use collectives_core::addr::{Operand, WindowId, WindowSlice};
use collectives_core::agreement::Record;
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::communicator::{Abort, AbortHandle, Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::error::{Error, ErrorKind, Field, Misuse, Result};
use collectives_core::layered::symmetric_of;
use collectives_core::memory::Memory;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::SCRATCH_ALIGNMENT;
use collectives_core::stream::StreamRef;
use collectives_core::submission::{Copy, Submission};

use crate::interpose::Interpose as _;
use crate::planted::Planted;
use crate::planted::device::{BuggedDevice, last_copy, next_generation, next_operation};
use crate::planted::fold::{saturate, sum_in_order};

/// What a planted bug does around the calls of one communicator.
#[derive(Debug)]
pub(crate) struct Bugged {
    bug: Option<Planted>,
    /// What the bug does to copies.
    device: Option<Arc<BuggedDevice>>,
    last: Option<Memory>,
    registered: u64,
    left_out: bool,
}

impl Bugged {
    pub(crate) fn new(bug: Option<Planted>, device: Option<Arc<BuggedDevice>>) -> Self {
        Self {
            bug,
            device,
            last: None,
            registered: 0,
            left_out: false,
        }
    }

    pub(crate) fn for_child(&self) -> Self {
        Self::new(self.bug, self.device.clone())
    }

    fn is(&self, bug: Planted) -> bool {
        self.bug == Some(bug)
    }

    /// The copies to make instead, as the bug's device would make them.
    pub(crate) fn copies(
        &self,
        seen: &dyn Device,
        copies: &[Copy],
        stream: &StreamRef,
    ) -> Result<Vec<Copy>> {
        let made = |copy: &Copy| {
            let Copy { dst, src, bytes } = *copy;
            let bytes = match &self.device {
                Some(device) => device.copying(seen, dst, src, bytes, stream)?,
                None => bytes,
            };
            Ok(Copy { dst, src, bytes })
        };
        copies.iter().map(made).collect()
    }

    /// Whether the bug made the copies in and the calls itself, folding in another order of ranks.
    pub(crate) fn folds(
        &self,
        inner: &mut dyn Communicator,
        seen: &dyn Device,
        submission: &Submission<'_>,
    ) -> Result<bool> {
        let (first, ranks) = (inner.info().rank.index(), inner.info().world_size);
        let order: Vec<_> = match self.bug {
            Some(Planted::FoldsBackwards) => (0..ranks).rev().collect(),
            Some(Planted::FoldsFromItself) => {
                (0..ranks).map(|rank| (first + rank) % ranks).collect()
            }
            _ => return Ok(false),
        };
        sum_in_order(inner, seen, submission, &order)
    }

    /// The operations to enqueue instead, if others.
    pub(crate) fn enqueue<'a>(
        &mut self,
        inner: &mut dyn Communicator,
        captures: bool,
        ops: &[Collective<'a>],
    ) -> Result<Option<Vec<Collective<'a>>>> {
        let change: fn(&dyn Communicator, &mut Collective<'a>) = match self.bug {
            Some(Planted::LastElementLost) => |_, op| lose_last(op),
            Some(Planted::BytesCut) => |_, op| cut(op),
            Some(Planted::StagedSumIsMaximum) => |_, op| {
                if op.send.window.is_some() && op.op == Op::AllReduce(ReduceOp::Sum) {
                    op.op = Op::AllReduce(ReduceOp::Max);
                }
            },
            Some(Planted::OriginalPointer) => |_, op| {
                if let Some(source) = last_copy(op.send.bytes)
                    && op.send.window.is_some()
                    && op.send.same_range(op.recv)
                {
                    op.send = Operand::new(source, op.send.bytes);
                }
            },
            Some(Planted::WholeSlotReduced) => |inner, op| double(inner, op),
            Some(Planted::WindowsStripped) => |_, op| {
                op.send.window = None;
                op.recv.window = None;
            },
            Some(Planted::AverageDropped) => |_, op| {
                if op.op == Op::ReduceScatter(ReduceOp::Average) {
                    op.op = Op::ReduceScatter(ReduceOp::Sum);
                }
            },
            Some(Planted::AverageOnlyInPlace) => |_, op| {
                if op.op == Op::AllReduce(ReduceOp::Average) && !op.send.same_range(op.recv) {
                    op.op = Op::AllReduce(ReduceOp::Sum);
                }
            },
            Some(Planted::ShardOffByAGranule) => |inner, op| {
                let granule = inner.info().granule;
                match op.op {
                    Op::AllGather => op.send = further(inner, op.send, granule),
                    Op::ReduceScatter(_) => op.recv = further(inner, op.recv, granule),
                    _ => {}
                }
            },
            Some(Planted::PieceSkipped) if is_barrier(ops) => return Ok(None),
            Some(Planted::PieceSkipped) => {
                return Ok((next_operation() == 1).then(Vec::new));
            }
            Some(Planted::PieceMisplaced) if is_barrier(ops) || next_operation() == 0 => {
                return Ok(None);
            }
            Some(Planted::PieceMisplaced) => |inner, op| {
                op.send = further(inner, op.send, SCRATCH_ALIGNMENT);
                op.recv = further(inner, op.recv, SCRATCH_ALIGNMENT);
            },
            Some(Planted::WrongSideStaged) => |_, op| match op.op {
                Op::AllGather => op.recv.window = None,
                Op::ReduceScatter(_) => op.send.window = None,
                _ => {}
            },
            Some(Planted::WindowOnSomeRanks) => |inner, op| {
                let is_sharded = matches!(op.op, Op::AllGather | Op::ReduceScatter(_));
                if is_sharded && inner.info().rank.0 % 2 == 1 {
                    op.send.window = None;
                    op.recv.window = None;
                }
            },
            Some(Planted::OffsetRoundedDown) => |_, op| {
                op.send = round_down(op.send);
                op.recv = round_down(op.recv);
            },
            Some(Planted::OwnMessagesAccepted) => {
                let me = inner.info().rank;
                let own = |op: &Collective<'_>| op.op == Op::Send { to: me };
                return Ok(ops.iter().all(own).then(Vec::new));
            }
            Some(Planted::BarriersLeftOut) => {
                return Ok(is_barrier(ops).then(Vec::new));
            }
            Some(Planted::AgreesInCapture) => {
                if captures {
                    inner.agree(&Record::new(), Duration::from_secs(2))?;
                }
                return Ok(None);
            }
            _ => return Ok(None),
        };
        let mut changed = ops.to_vec();
        for op in &mut changed {
            change(inner, op);
        }
        Ok(Some(changed))
    }

    pub(crate) fn enqueued(
        &self,
        inner: &dyn Communicator,
        seen: &dyn Device,
        submission: &Submission<'_>,
        outcome: Result<()>,
    ) -> Result<()> {
        if self.is(Planted::InputClobbered)
            && let Some(op) = submission.calls.first()
            && op.send.bytes > 0
            && !op.send.overlaps(op.recv)
            && submission.capture.is_none()
        {
            // SAFETY: The operand is valid until the work on the stream has finished, and that is
            // what this waits for. The planted bug is that it is an input.
            unsafe { seen.write(op.send.addr, &[0xa5], submission.stream) }?;
        }
        if self.is(Planted::EightBitsSaturate) {
            let mut calls = submission.calls.iter();
            calls.try_for_each(|op| saturate(seen, op, submission.stream))?;
        }
        match outcome {
            Err(error)
                if self.is(Planted::MismatchSwallowed)
                    && inner.info().rank.0 % 2 == 1
                    && matches!(error.kind(), ErrorKind::Mismatch { .. }) =>
            {
                Ok(())
            }
            Err(error) if self.is(Planted::MissedCallForgotten) && is_disorder(&error) => Ok(()),
            Err(error) => Err(self.waited(error)),
            outcome => outcome,
        }
    }

    /// The error of calls that are not the same, or of a deadline in its place.
    fn waited(&self, error: Error) -> Error {
        let field = match error.kind() {
            ErrorKind::Mismatch { field, .. } => *field,
            _ => return error,
        };
        match matches!(field, Field::Order | Field::Operation) && self.is(Planted::CrossedCallsWait)
        {
            true => Error::new(ErrorKind::Timeout {
                absent: Vec::new(),
                waited: Duration::ZERO,
            }),
            false => error,
        }
    }

    pub(crate) fn agree(
        &mut self,
        inner: &mut dyn Communicator,
        mine: &Record,
        deadline: Duration,
    ) -> Result<Vec<Record>> {
        let ranks = inner.info().world_size;
        let alone = || vec![mine.clone(); ranks];
        if self.is(Planted::AgreementEchoes) {
            return Ok(alone());
        }
        let outcome = inner.agree(mine, deadline);
        let timed_out = |error: &Error| matches!(error.kind(), ErrorKind::Timeout { .. });
        match outcome {
            Err(error) if timed_out(&error) && self.is(Planted::TimeoutIsSuccess) => Ok(alone()),
            Err(error) if timed_out(&error) && self.is(Planted::TimeoutNamesNobody) => {
                Err(Error::new(ErrorKind::Timeout {
                    absent: Vec::new(),
                    waited: deadline,
                }))
            }
            Err(error) if self.is(Planted::MissedCallForgotten) && is_disorder(&error) => {
                Ok(alone())
            }
            Err(error) => Err(self.waited(error)),
            outcome => outcome,
        }
    }

    pub(crate) fn window_of(&self, found: Option<WindowSlice>) -> Option<WindowSlice> {
        match self.bug {
            Some(Planted::WindowsNotFound) => None,
            Some(Planted::WindowOffsetLost) => {
                found.map(|slice| WindowSlice { offset: 0, ..slice })
            }
            _ => found,
        }
    }

    pub(crate) fn color(&mut self, color: Option<u32>) -> Option<u32> {
        self.left_out |= color.is_none();
        match color {
            Some(_) if self.is(Planted::ColorIgnored) => Some(0),
            Some(_) if self.is(Planted::LeftOutForGood) && self.left_out => None,
            color => color,
        }
    }

    pub(crate) fn abort_handle(&self, handle: AbortHandle) -> AbortHandle {
        if self.is(Planted::AbortIgnored) {
            return AbortHandle::new(Arc::new(Deaf));
        }
        handle
    }

    /// Whether the communicator is leaked when it is dropped.
    pub(crate) fn is_unheard(&self) -> bool {
        self.is(Planted::DroppedUnheard)
    }

    /// Called before the communicator is dropped.
    pub(crate) fn before_drop(&self, inner: &dyn Communicator) {
        if self.is(Planted::PanicUnsaid) && thread::panicking() {
            inner.abort_handle().abort("for no reason");
        }
    }

    pub(crate) fn shutdown(&self, inner: &mut dyn Communicator) -> Result<Deferred> {
        if self.is(Planted::ShutdownForgotten) {
            return Ok(Deferred::default());
        }
        inner.shutdown()
    }

    pub(crate) fn allocate(
        &mut self,
        inner: &mut dyn Communicator,
        bytes: usize,
        extend: Option<WindowId>,
    ) -> Result<Memory> {
        if self.is(Planted::AllocatedTwice)
            && let Some(last) = self.last.take_if(|last| last.bytes() >= bytes)
        {
            return Ok(last);
        }
        let extend = extend.filter(|_| !self.is(Planted::ExtensionsCopy));
        let memory = symmetric_of(inner)?.allocate(bytes, extend)?;
        if extend.is_some() {
            next_generation();
        }
        match self.bug {
            Some(Planted::AllocatedTwice) => self.last = Some(memory.clone()),
            Some(Planted::AllocationLeaks) => std::mem::forget(memory.clone()),
            _ => {}
        }
        Ok(memory)
    }

    pub(crate) fn register(
        &mut self,
        inner: &mut dyn Communicator,
        memory: &Memory,
    ) -> Result<WindowId> {
        let rank = u64::from(inner.info().rank.0);
        let outcome = symmetric_of(inner)?.register(memory);
        self.registered += u64::from(outcome.is_ok());
        match outcome {
            Ok(window) if self.is(Planted::WindowsNumberedLocally) => Ok(WindowId(window.0 + rank)),
            Err(error)
                if self.is(Planted::DoubleRegisterAllowed)
                    && error.misuse() == Some(&Misuse::AlreadyRegistered) =>
            {
                Ok(WindowId(self.registered))
            }
            outcome => outcome,
        }
    }

    pub(crate) fn extensible(&mut self, inner: &mut dyn Communicator) -> Result<usize> {
        let addresses = symmetric_of(inner)?.extensible()?;
        Ok(match self.bug {
            Some(Planted::AddressesEndless) => usize::MAX,
            _ => addresses,
        })
    }

    pub(crate) fn retire(&mut self, inner: &mut dyn Communicator, window: WindowId) -> Result<()> {
        if self.is(Planted::RetireForgotten) {
            return Ok(());
        }
        if self.is(Planted::RetireClears) {
            clear(inner, window)?;
        }
        match symmetric_of(inner)?.retire(window) {
            Err(error)
                if self.is(Planted::StaleWindowAccepted)
                    && error.misuse() == Some(&Misuse::UnknownWindow) =>
            {
                Ok(())
            }
            outcome => outcome,
        }
    }
}

/// Whether an error says that calls are out of order.
fn is_disorder(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Mismatch {
            field: Field::Order,
            ..
        }
    ) && error.poisons()
}

/// Zeroes the first word of this rank's part of a window.
fn clear(inner: &mut dyn Communicator, window: WindowId) -> Result<()> {
    let rank = inner.info().rank;
    let start = symmetric_of(inner)?.peer_address(window, rank, 0)?;
    let device = Arc::clone(inner.device());
    let stream = device.create_stream()?;
    // SAFETY: The window is still registered, and all work on it has finished, as `retire` demands.
    unsafe { device.write(start, &[0; 8], &stream) }?;
    device.synchronize(&stream)
}

fn lose_last(op: &mut Collective<'_>) {
    let Counts::Even(count @ 1..) = op.counts else {
        return;
    };
    if let Op::AllReduce(_) = op.op {
        let bytes = (count - 1) * op.dtype.size();
        op.counts = Counts::Even(count - 1);
        op.send.bytes = bytes;
        op.recv.bytes = bytes;
    }
}

/// The bytes that fit into 32 bits, of an operation whose sides are of one size.
fn cut(op: &mut Collective<'_>) {
    let Counts::Even(count) = op.counts else {
        return;
    };
    let size = op.dtype.size();
    let kept = (count * size) & (u32::MAX as usize);
    if kept != count * size {
        op.counts = Counts::Even(kept / size);
        for side in [&mut op.send, &mut op.recv] {
            side.bytes = side.bytes.min(kept);
        }
    }
}

fn double(inner: &dyn Communicator, op: &mut Collective<'_>) {
    let (Counts::Even(count), Op::AllReduce(_)) = (op.counts, op.op) else {
        return;
    };
    let fits = |side: Operand| inner.window_of(side.addr, side.bytes * 2).is_some();
    if op.send.window.is_some() && fits(op.send) && fits(op.recv) {
        op.counts = Counts::Even(count * 2);
        op.send.bytes *= 2;
        op.recv.bytes *= 2;
    }
}

fn is_barrier(ops: &[Collective<'_>]) -> bool {
    ops.iter().all(|op| op.op == Op::Barrier)
}

/// The operand so many bytes further on, where its window reaches that far.
fn further(inner: &dyn Communicator, side: Operand, bytes: usize) -> Operand {
    let next = side.addr.offset(bytes);
    match (side.window, inner.window_of(next, side.bytes)) {
        (Some(here), Some(there)) if here.window == there.window => Operand {
            addr: next,
            window: Some(there),
            ..side
        },
        _ => side,
    }
}

fn round_down(side: Operand) -> Operand {
    let Some(slice) = side.window else {
        return side;
    };
    let over = slice.offset % 16;
    Operand {
        addr: side.addr.offset(over.wrapping_neg()),
        window: Some(WindowSlice {
            offset: slice.offset - over,
            ..slice
        }),
        ..side
    }
}

/// Hears no abort.
#[derive(Debug)]
struct Deaf;

impl Abort for Deaf {
    fn abort(&self, _cause: &str) {
        static IGNORED: AtomicU64 = AtomicU64::new(0);
        IGNORED.fetch_add(1, Ordering::Relaxed);
    }

    fn health(&self) -> Result<()> {
        Ok(())
    }
}
