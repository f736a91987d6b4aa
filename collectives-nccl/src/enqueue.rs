//! Enqueues collectives: one group of NCCL, and what has to follow it.

use std::ffi::CStr;
use std::slice;

use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::dtype::DType;
use collectives_core::error::{CaptureFault, Error, Result, Unsupported};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Site;
use collectives_core::work::Work;
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
fn arithmetic(op: &Collective<'_>) -> Result<Arithmetic> {
    let (dtype, reduction) = match op.op {
        Op::Barrier => return Ok(Arithmetic::sum(DataType::INT32)),
        _ => (convert::data_type(op.dtype)?, op.reduction()),
    };
    if divides(op) {
        return Ok(Arithmetic::sum(dtype));
    }
    let op = match reduction {
        None => Reduction::None,
        Some(ReduceOp::PreMulSum(scalar)) => Reduction::Scaled(scalar),
        Some(other) => convert::reduction(other).map_or(Reduction::None, Reduction::Plain),
    };
    Ok(Arithmetic { dtype, op })
}

/// The reduction of a call that is one call of the library with an operator that the library has, and
/// nothing before or after it; of a call that does not reduce, any.
#[inline(always)]
fn plain(call: &Collective<'_>) -> Option<RedOp> {
    match (call.op, call.counts) {
        (_, Counts::Uneven(_) | Counts::Even(0)) | (Op::AllReduce(ReduceOp::Average), _) => None,
        (Op::AllReduce(op) | Op::ReduceScatter(op), _) => convert::reduction(op),
        (Op::AllGather, _) => Some(RedOp::SUM),
        _ => None,
    }
}

impl NcclCommunicator {
    /// Enqueues operations that passed [`Collective::check`] on a stream that captures if `site` says so.
    ///
    /// # Safety
    ///
    /// As for `Communicator::enqueue_checked`.
    #[inline(always)]
    pub(crate) unsafe fn enqueue_on(&self, work: &Work<'_, '_>, site: Site<'_>) -> Result<()> {
        let enqueued = if self.algorithm == Algorithm::Auto
            && let [call] = work.calls
            && let Some(op) = plain(call)
            && let Some(step) = mapping::single(call, self.info.rank, &self.barrier)
        {
            // SAFETY: By the caller.
            unsafe { self.enqueue_plain(work, call, (step, op), site) }
        } else {
            // SAFETY: By the caller.
            unsafe { self.enqueue_others(work, site) }
        };
        enqueued.map_err(|error| self.state.note(error))
    }

    /// Enqueues work whose one call is [`plain`], and is this step, of which the library chooses the kernel:
    /// what most calls are, with as little code between the caller and the library as there can be.
    ///
    /// # Safety
    ///
    /// As for `Communicator::enqueue_checked`.
    #[inline(always)]
    unsafe fn enqueue_plain(
        &self,
        work: &Work<'_, '_>,
        call: &Collective<'_>,
        (step, op): (Step, RedOp),
        site: Site<'_>,
    ) -> Result<()> {
        // Here too, so that what is refused leaves no copy behind, and no claim of a graph.
        self.state.check_open()?;
        self.check_windows(call)?;
        let dtype = convert::data_type(call.dtype)?;
        let (stream, _current) = self.enter(site)?;
        if site.capture.is_some() {
            self.claim(stream, slice::from_ref(call))?;
        }
        // SAFETY: By the caller.
        let enqueued = unsafe { self.enqueue_step(work, (step, dtype, op), stream) };
        let noted = self.leave(site, stream);
        enqueued.and(noted)
    }

    /// Enqueues one call of the library and the copies around it.
    ///
    /// # Safety
    ///
    /// As for `Communicator::enqueue_checked`.
    #[inline(always)]
    unsafe fn enqueue_step(
        &self,
        work: &Work<'_, '_>,
        (step, dtype, op): (Step, DataType, RedOp),
        stream: &CudaStream,
    ) -> Result<()> {
        // SAFETY: By the caller.
        unsafe { stream.copy(work.into) }?;
        let inside = self.state.inside()?;
        let to = Call {
            nccl: self.state.nccl,
            comm: inside.comm,
            stream: Stream(stream.raw.0),
        };
        let called = to.call(step, dtype, op);
        inside.leave()?;
        called?;
        // SAFETY: By the caller.
        unsafe { stream.copy(work.out) }
    }

    /// Enqueues any work.
    ///
    /// # Safety
    ///
    /// As for `Communicator::enqueue_checked`.
    #[inline(never)]
    unsafe fn enqueue_others(&self, work: &Work<'_, '_>, site: Site<'_>) -> Result<()> {
        self.state.check_open()?;
        self.check(work.calls)?;
        if !work.calls.iter().any(Collective::is_empty) {
            // SAFETY: By the caller.
            return unsafe { self.enqueue_full(work, site) };
        }
        let full = work.calls.iter().filter(|call| !call.is_empty());
        let calls = &*full.copied().collect::<Vec<_>>();
        // SAFETY: By the caller.
        unsafe { self.enqueue_full(&Work { calls, ..*work }, site) }
    }

    /// Enqueues operations that were checked, none of them empty, as one group, and their copies.
    ///
    /// # Safety
    ///
    /// As for `Communicator::enqueue_checked`.
    unsafe fn enqueue_full(&self, work: &Work<'_, '_>, site: Site<'_>) -> Result<()> {
        let ops = work.calls;
        if ops.is_empty() && work.into.is_empty() && work.out.is_empty() {
            return Ok(());
        }
        let (stream, _current) = self.enter(site)?;
        let divides = ops.iter().any(divides);
        if divides {
            self.prepare(ops)?;
        }
        if site.capture.is_some() {
            self.claim(stream, ops)?;
        }
        // SAFETY: By the caller.
        let enqueued = unsafe { self.enqueue_group(work, divides, stream) };
        let noted = self.leave(site, stream);
        enqueued.and(noted)
    }

    /// Enqueues operations as one group, and the copies and divisions around it.
    ///
    /// # Safety
    ///
    /// As for `Communicator::enqueue_checked`.
    unsafe fn enqueue_group(
        &self,
        work: &Work<'_, '_>,
        divides: bool,
        stream: &CudaStream,
    ) -> Result<()> {
        let ops = work.calls;
        // SAFETY: By the caller.
        unsafe { stream.copy(work.into) }?;
        self.state.with_comm(|nccl, comm| {
            let call = Call {
                nccl,
                comm,
                stream: Stream(stream.raw.0),
            };
            match ops {
                [] => Ok(()),
                [op] => match mapping::single(op, self.info.rank, &self.barrier) {
                    Some(step) => call.step(step, arithmetic(op)?, self.selected(op)),
                    None => self.group(&call, ops),
                },
                _ => self.group(&call, ops),
            }
        })?;
        if divides {
            // SAFETY: By the caller.
            unsafe { self.divide(ops, stream) }?;
        }
        // SAFETY: By the caller.
        unsafe { stream.copy(work.out) }
    }

    /// The stream of a call, with the context current.
    ///
    /// Not in relaxed mode: launches disturb no capture, and for what it sets up at a first call NCCL
    /// changes the mode itself, also on threads of its own.
    #[inline(always)]
    fn enter<'s>(&self, site: Site<'s>) -> Result<(&'s CudaStream, Current)> {
        let device = &self.state.device;
        let stream = stream_of(device.id, site.stream)?;
        stream.health()?;
        Ok((stream, device.context.enter()?))
    }

    /// Notes what was enqueued, also where only a part of it was.
    #[inline(always)]
    fn leave(&self, site: Site<'_>, stream: &CudaStream) -> Result<()> {
        if site.capture.is_none() {
            if stream.is_foreign() {
                stream.mark()?;
            }
            self.state.note_work(site.stream, stream);
        }
        Ok(())
    }

    /// Checks what [`Collective::check`] cannot know.
    fn check(&self, calls: &[Collective<'_>]) -> Result<()> {
        for call in calls {
            self.check_windows(call)?;
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
    fn group(&self, call: &Call<'_>, ops: &[Collective<'_>]) -> Result<()> {
        // SAFETY: `ncclGroupStart` (nccl.h, "Group semantics") is ended below on this thread.
        unsafe { call.nccl.group_start() }.map_err(nccl_error)?;
        let issued = ops.iter().try_for_each(|op| self.issue(call, op));
        // SAFETY: As above; a group must be ended also after a failure inside.
        let ended = unsafe { call.nccl.group_end() }.map_err(nccl_error);
        issued.and(ended)
    }

    fn issue(&self, call: &Call<'_>, op: &Collective<'_>) -> Result<()> {
        let arithmetic = arithmetic(op)?;
        let selection = self.selected(op);
        mapping::steps(
            op,
            self.info.rank,
            self.info.world_size,
            &self.barrier,
            &mut |step| call.step(step, arithmetic, selection),
        )
    }

    /// What the library is told to choose from, for a call on windows that a kernel serves.
    #[inline(never)]
    fn selected(&self, op: &Collective<'_>) -> Option<&'static CStr> {
        if self.algorithm == Algorithm::Auto {
            return None;
        }
        let rule = self
            .capabilities
            .paths
            .rule(op, self.info.rank, self.info.world_size)
            .ok()?;
        let in_windows = (!rule.needs.send() || op.send.window.is_some())
            && (!rule.needs.recv() || op.recv.window.is_some());
        in_windows
            .then(|| self.algorithm.selection(op.kind()))
            .flatten()
    }
}
