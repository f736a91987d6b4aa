//! Enqueues submissions: copies, one group of NCCL, what has to follow it, copies.

use std::ffi::CStr;
use std::slice;

use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::dtype::DType;
use collectives_core::error::{CaptureFault, Error, Result, Unsupported};
use collectives_core::reduce::ReduceOp;
use collectives_core::submission::{KernelChoice, Submission};
use nccl_sys::{DataType, RedOp, Stream};

use crate::call::{Arithmetic, Call, Reduction};
use crate::communicator::NcclCommunicator;
use crate::convert;
use crate::device::stream::{CudaStream, stream_of};
use crate::driver::{Current, RawFunction};
use crate::error::nccl_error;
use crate::mapping::{self, Step};
use crate::options::Algorithm;
use crate::scale;

/// Whether NCCL would refuse the call after others of its group were enqueued.
///
/// On one rank a scalar is multiplied by a kernel of its own, which has no 8-bit floats.
fn is_refused(call: &Collective<'_>, world_size: usize) -> bool {
    let eight_bits = matches!(call.dtype, DType::F8E4M3 | DType::F8E5M2);
    let scaled = matches!(call.reduction(), Some(ReduceOp::PreMulSum(_)));
    world_size == 1 && eight_bits && scaled
}

#[cold]
fn refused(call: &Collective<'_>) -> Error {
    let text = format!("NCCL multiplies no {} on a single rank", call.dtype);
    Error::unsupported(Unsupported::Operation(text))
}

/// Whether an average is a sum and a division of ours.
fn divides(call: &Collective<'_>) -> bool {
    matches!(call.op, Op::AllReduce(ReduceOp::Average)) && call.dtype.is_float()
}

/// The element type and the reduction of an operation.
#[inline]
///
/// On one rank an average is a sum, because NCCL scales by a kernel of its own there, which has no 8-bit
/// floats.
fn arithmetic(op: &Collective<'_>, world_size: usize) -> Result<Arithmetic> {
    let (dtype, reduction) = match op.op {
        Op::Barrier => return Ok(Arithmetic::sum(DataType::INT32)),
        _ => (convert::data_type(op.dtype)?, op.reduction()),
    };
    let alone = world_size == 1 && matches!(reduction, Some(ReduceOp::Average));
    if alone || divides(op) {
        return Ok(Arithmetic::sum(dtype));
    }
    let op = match reduction {
        None => Reduction::None,
        Some(ReduceOp::PreMulSum(scalar)) => Reduction::Scaled(scalar),
        Some(other) => convert::reduction(other).map_or(Reduction::None, Reduction::Plain),
    };
    Ok(Arithmetic { dtype, op })
}

/// A call that is one call of the library with an operator that the library has and a kernel that it
/// chooses, and nothing before or after it.
pub(crate) struct Plain<'a> {
    call: &'a Collective<'a>,
    step: Step,
    op: RedOp,
}

impl NcclCommunicator {
    /// The one call of a submission, if it is plain.
    #[inline(always)]
    pub(crate) fn plain<'a>(&self, submission: &Submission<'a>) -> Option<Plain<'a>> {
        let [call] = submission.calls else {
            return None;
        };
        if self.algorithm(submission.kernel) != Algorithm::Auto {
            return None;
        }
        let op = match (call.op, call.counts) {
            (_, Counts::Uneven(_) | Counts::Even(0)) | (Op::AllReduce(ReduceOp::Average), _) => {
                return None;
            }
            (Op::ReduceScatter(ReduceOp::Average), _) if self.info.world_size == 1 => return None,
            (Op::AllReduce(op) | Op::ReduceScatter(op), _) => convert::reduction(op)?,
            (Op::AllGather, _) => RedOp::SUM,
            _ => return None,
        };
        let step = mapping::single(call, self.info.rank, &self.barrier)?;
        Some(Plain { call, step, op })
    }

    /// Enqueues a plain call and its copies: what most submissions are, with as little code between the
    /// caller and the library as there can be.
    ///
    /// # Safety
    ///
    /// As for `Communicator::enqueue`.
    #[inline(always)]
    pub(crate) unsafe fn enqueue_plain(
        &self,
        submission: &Submission<'_>,
        &Plain { call, step, op }: &Plain<'_>,
    ) -> Result<()> {
        // Here too, so that what is refused leaves no copy behind, and no claim of a graph.
        self.state.check_open()?;
        self.check_windows(call)?;
        let dtype = convert::data_type(call.dtype)?;
        let (stream, _current) = self.enter(submission)?;
        if submission.capture.is_some() {
            self.claim(stream, slice::from_ref(call))?;
        }
        let enqueue = || {
            // SAFETY: By the caller ("The copies").
            unsafe { stream.copy(submission.copies_in) }?;
            let inside = self.state.inside()?;
            let to = Call {
                nccl: self.state.nccl,
                comm: inside.comm,
                stream: Stream(stream.raw.0),
            };
            let called = to.call(step, dtype, op);
            inside.leave()?;
            called?;
            // SAFETY: As above.
            unsafe { stream.copy(submission.copies_out) }
        };
        let enqueued = enqueue();
        let noted = self.leave(submission, stream);
        enqueued.and(noted)
    }

    /// Enqueues any submission.
    ///
    /// # Safety
    ///
    /// As for `Communicator::enqueue`.
    #[inline(never)]
    pub(crate) unsafe fn enqueue_any(&self, submission: &Submission<'_>) -> Result<()> {
        self.state.check_open()?;
        self.check(submission.calls)?;
        let full;
        let calls = match submission.calls.iter().any(Collective::is_empty) {
            false => submission.calls,
            true => {
                let calls = submission.calls.iter().filter(|call| !call.is_empty());
                full = calls.copied().collect::<Vec<_>>();
                &*full
            }
        };
        if calls.is_empty() && submission.copies_in.is_empty() && submission.copies_out.is_empty() {
            return Ok(());
        }
        let (stream, _current) = self.enter(submission)?;
        let divides = calls.iter().any(divides);
        if divides {
            self.prepare(calls)?;
        }
        match submission.capture {
            Some(_) => self.claim(stream, calls)?,
            None if calls.iter().all(|call| call.kind().is_point_to_point()) => {
                self.state.note_messages();
            }
            None => {}
        }
        let enqueue = || {
            // SAFETY: By the caller ("The copies").
            unsafe { stream.copy(submission.copies_in) }?;
            self.call(calls, self.algorithm(submission.kernel), stream)?;
            if divides {
                // SAFETY: By the caller ("The operands").
                unsafe { self.divide(calls, stream) }?;
            }
            // SAFETY: As for those before.
            unsafe { stream.copy(submission.copies_out) }
        };
        let enqueued = enqueue();
        let noted = self.leave(submission, stream);
        enqueued.and(noted)
    }

    /// Calls the library, with several calls as one group.
    fn call(
        &self,
        calls: &[Collective<'_>],
        algorithm: Algorithm,
        stream: &CudaStream,
    ) -> Result<()> {
        if calls.is_empty() {
            return Ok(());
        }
        self.state.with_comm(|nccl, comm| {
            let to = Call {
                nccl,
                comm,
                stream: Stream(stream.raw.0),
            };
            if let [call] = calls
                && let Some(step) = mapping::single(call, self.info.rank, &self.barrier)
            {
                return to.step(
                    step,
                    arithmetic(call, self.info.world_size)?,
                    self.selected(call, algorithm),
                );
            }
            self.group(&to, calls, algorithm)
        })
    }

    /// What the library chooses from.
    #[inline(always)]
    fn algorithm(&self, kernel: KernelChoice) -> Algorithm {
        match (self.algorithm, kernel) {
            (Algorithm::Auto, KernelChoice::Symmetric) if self.capabilities.forces_kernels => {
                Algorithm::Symmetric
            }
            (algorithm, _) => algorithm,
        }
    }

    /// The stream of a call, with the context current.
    ///
    /// Not in relaxed mode: launches disturb no capture, and for what it sets up at a first call NCCL
    /// changes the mode itself, also on threads of its own.
    #[inline(always)]
    fn enter<'s>(&self, submission: &Submission<'s>) -> Result<(&'s CudaStream, Current)> {
        let device = &self.state.device;
        let stream = stream_of(device.id, submission.stream)?;
        stream.health()?;
        Ok((stream, device.context.enter()?))
    }

    /// Notes what was enqueued, also where only a part of it was.
    #[inline(always)]
    fn leave(&self, submission: &Submission<'_>, stream: &CudaStream) -> Result<()> {
        if submission.capture.is_none() {
            if stream.is_foreign() {
                stream.mark()?;
            }
            self.state.note_work(submission.stream, stream);
        }
        Ok(())
    }

    /// Checks what [`Collective::check`] cannot know.
    fn check(&self, calls: &[Collective<'_>]) -> Result<()> {
        for call in calls {
            self.check_windows(call)?;
            arithmetic(call, self.info.world_size)?;
            if is_refused(call, self.info.world_size) {
                return Err(refused(call));
            }
        }
        match calls.iter().any(|call| call.kind().is_point_to_point()) {
            true => mapping::check_self_messages(calls, self.info.rank),
            false => Ok(()),
        }
    }

    /// Checks that operands lie in the windows they name.
    #[inline(always)]
    fn check_windows(&self, call: &Collective<'_>) -> Result<()> {
        self.windows.check("send", call.send)?;
        let (send, recv) = (call.send, call.recv);
        match recv.same_range(send) && recv.window == send.window {
            true => Ok(()),
            false => self.windows.check("recv", recv),
        }
    }

    /// Finds the kernels of averages, before anything is enqueued.
    #[cold]
    fn prepare(&self, ops: &[Collective<'_>]) -> Result<()> {
        let mut averages = ops.iter().filter(|call| divides(call));
        averages.try_for_each(|call| scale::prepare(&self.state.device, call.dtype).map(drop))
    }

    /// Makes the graph that is being captured own what the operations use.
    #[cold]
    fn claim(&self, stream: &CudaStream, ops: &[Collective<'_>]) -> Result<()> {
        let device = &self.state.device;
        let (driver, captures) = (device.driver(), &device.captures);
        let capturing = stream.capturing()?;
        let capturing = capturing.ok_or_else(|| Error::capture(CaptureFault::NotCapturing))?;
        captures.own(driver, capturing, self.info.token.clone())?;
        if ops.iter().any(|call| call.op == Op::Barrier) {
            captures.own(driver, capturing, self.barrier.clone())?;
        }
        captures.uses(capturing.id, &self.state);
        Ok(())
    }

    /// Makes averages of sums, in stream order.
    ///
    /// # Safety
    ///
    /// As for `Communicator::enqueue`.
    #[inline(never)]
    unsafe fn divide(&self, ops: &[Collective<'_>], stream: &CudaStream) -> Result<()> {
        let (device, world_size) = (&self.state.device, self.info.world_size);
        if world_size == 1 {
            return Ok(());
        }
        for call in ops.iter().filter(|call| divides(call)) {
            let function: RawFunction = scale::prepare(device, call.dtype)?;
            let (at, count) = (call.recv.addr, call.counts.of(self.info.rank));
            // SAFETY: By the caller.
            unsafe { scale::divide(device, function, at, count, world_size, stream.raw) }?;
        }
        Ok(())
    }

    #[inline(never)]
    fn group(&self, to: &Call<'_>, calls: &[Collective<'_>], algorithm: Algorithm) -> Result<()> {
        // SAFETY: `ncclGroupStart` (nccl.h, "Group semantics") is ended below on this thread.
        unsafe { to.nccl.group_start() }.map_err(nccl_error)?;
        let issued = calls
            .iter()
            .try_for_each(|call| self.issue(to, call, algorithm));
        // SAFETY: As above; a group must be ended also after a failure inside.
        let ended = unsafe { to.nccl.group_end() }.map_err(nccl_error);
        issued.and(ended)
    }

    fn issue(&self, to: &Call<'_>, call: &Collective<'_>, algorithm: Algorithm) -> Result<()> {
        let arithmetic = arithmetic(call, self.info.world_size)?;
        let selection = self.selected(call, algorithm);
        mapping::steps(
            call,
            self.info.rank,
            self.info.world_size,
            &self.barrier,
            &mut |step| to.step(step, arithmetic, selection),
        )
    }

    /// What the library is told to choose from, for a call on windows that a kernel serves.
    #[inline(never)]
    fn selected(&self, call: &Collective<'_>, algorithm: Algorithm) -> Option<&'static CStr> {
        if algorithm == Algorithm::Auto {
            return None;
        }
        let rule = self
            .capabilities
            .paths
            .rule(call, self.info.rank, self.info.world_size)
            .ok()?;
        let in_windows = (!rule.needs.send() || call.send.window.is_some())
            && (!rule.needs.recv() || call.recv.window.is_some());
        in_windows
            .then(|| algorithm.selection(call.kind()))
            .flatten()
    }
}
