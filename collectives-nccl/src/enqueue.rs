//! Enqueues collectives: one group of NCCL, and what has to follow it.

use std::ffi::CStr;

use collectives_core::collective::{Collective, Op};
use collectives_core::dtype::DType;
use collectives_core::error::{CaptureFault, Error, Result};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Site;
use nccl_sys::{DataType, Stream};

use crate::call::{Arithmetic, Call, Reduction};
use crate::communicator::NcclCommunicator;
use crate::convert;
use crate::device::stream::{CudaStream, stream_of};
use crate::driver::RawFunction;
use crate::error::nccl_error;
use crate::mapping;
use crate::options::Algorithm;
use crate::scale;

/// Whether NCCL would refuse the call after others of its group were enqueued.
///
/// On one rank a scalar is multiplied by a kernel of its own, which has no 8-bit floats.
pub(crate) fn is_refused(call: &Collective<'_>, world_size: usize) -> bool {
    let eight_bits = matches!(call.dtype, DType::F8E4M3 | DType::F8E5M2);
    let scaled = matches!(call.reduction(), Some(ReduceOp::PreMulSum(_)));
    world_size == 1 && eight_bits && scaled
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

impl NcclCommunicator {
    /// Enqueues operations that were checked, some and none of them empty.
    ///
    /// # Safety
    ///
    /// As for `Communicator::enqueue_checked`.
    #[inline]
    pub(crate) unsafe fn enqueue_full(&self, ops: &[Collective<'_>], site: Site<'_>) -> Result<()> {
        let state = &*self.state;
        let stream = stream_of(state.device.id, site.stream)?;
        stream.health()?;
        // Not in relaxed mode: launches disturb no capture, and for what it sets up at a first call NCCL
        // changes the mode itself, also on threads of its own.
        let _current = state.device.context.enter()?;
        let divides = ops.iter().any(divides);
        if divides {
            self.prepare(ops)?;
        }
        if site.capture.is_some() {
            self.claim(stream, ops)?;
        }
        state.with_comm(|nccl, comm| {
            let call = Call {
                nccl,
                comm,
                stream: Stream(stream.raw.0),
            };
            match ops {
                [op] => match mapping::single(op, self.info.rank, &self.barrier) {
                    Some(step) => call.step(step, arithmetic(op)?, self.selection(op)),
                    None => self.group(&call, ops),
                },
                _ => self.group(&call, ops),
            }
        })?;
        if divides {
            // SAFETY: By the caller.
            unsafe { self.divide(ops, stream) }?;
        }
        if site.capture.is_none() {
            if stream.is_foreign() {
                stream.mark()?;
            }
            state.note_work(site.stream, stream);
        }
        Ok(())
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
        let selection = self.selection(op);
        mapping::steps(
            op,
            self.info.rank,
            self.info.world_size,
            &self.barrier,
            &mut |step| call.step(step, arithmetic, selection),
        )
    }

    /// What the library is told to choose from, for a call on windows that a kernel serves.
    #[inline]
    fn selection(&self, op: &Collective<'_>) -> Option<&'static CStr> {
        match self.algorithm {
            Algorithm::Auto => None,
            _ => self.selected(op),
        }
    }

    fn selected(&self, op: &Collective<'_>) -> Option<&'static CStr> {
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
