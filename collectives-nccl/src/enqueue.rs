//! Enqueues collectives: one group of NCCL, and what has to follow it.

use std::ffi::CStr;
use std::sync::Arc;

use collectives_core::collective::{Collective, Op};
use collectives_core::dtype::DType;
use collectives_core::error::Result;
use collectives_core::memory::Memory;
use collectives_core::path::PathTable;
use collectives_core::rank::Rank;
use collectives_core::reduce::{ReduceOp, Scalar};
use nccl_sys::{CollConfig, Comm, DataType, Nccl, RedOp, ScalarResidence, Stream};

use crate::convert;
use crate::device::stream::CudaStream;
use crate::driver::RawFunction;
use crate::error::nccl_error;
use crate::mapping::{self, Step};
use crate::options::Algorithm;
use crate::scale;
use crate::state::State;

/// What enqueueing needs of a communicator.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    pub(crate) state: &'a Arc<State>,
    pub(crate) rank: Rank,
    pub(crate) world_size: usize,
    pub(crate) token: &'a Memory,
    pub(crate) barrier: &'a Memory,
    pub(crate) table: &'a PathTable,
    pub(crate) algorithm: Algorithm,
}

/// The element type and reduction of one operation, as NCCL takes them.
#[derive(Clone, Copy)]
struct Arithmetic {
    dtype: DataType,
    op: Reduction,
}

#[derive(Clone, Copy)]
enum Reduction {
    None,
    Plain(RedOp),
    /// Made for one call.
    Scaled(Scalar),
}

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

impl Site<'_> {
    /// Enqueues operations that were checked, none of them empty.
    ///
    /// # Safety
    ///
    /// As for `Communicator::enqueue`.
    pub(crate) unsafe fn enqueue(&self, ops: &[Collective<'_>], stream: &CudaStream) -> Result<()> {
        let state = self.state;
        stream.health()?;
        let device = &state.device;
        let _current = device.context.enter_relaxed()?;
        for call in ops.iter().filter(|call| divides(call)) {
            scale::prepare(device, call.dtype)?;
        }
        let capturing = stream.capturing()?;
        if let Some(capturing) = capturing {
            let (driver, captures) = (device.driver(), &device.captures);
            captures.own(driver, capturing, self.token.clone())?;
            if ops.iter().any(|call| call.op == Op::Barrier) {
                captures.own(driver, capturing, self.barrier.clone())?;
            }
            captures.uses(capturing.id, state);
        }
        let grouped = ops.len() > 1 || !mapping::is_single(&ops[0]);
        state.with_comm(|nccl, comm| {
            let call = Call {
                nccl,
                comm,
                stream: Stream(stream.raw.0),
            };
            match grouped {
                false => self.issue(&call, &ops[0]),
                true => self.group(&call, ops),
            }
        })?;
        if self.world_size > 1 {
            for call in ops.iter().filter(|call| divides(call)) {
                let function: RawFunction = scale::prepare(device, call.dtype)?;
                let count = call.counts.of(self.rank);
                // SAFETY: The receive operand is valid and ordered, by the caller.
                unsafe {
                    scale::divide(
                        device,
                        function,
                        call.recv.addr,
                        count,
                        self.world_size,
                        stream.raw,
                    )
                }?;
            }
        }
        if capturing.is_none() {
            stream.mark()?;
            state.note_work(stream);
        }
        Ok(())
    }

    fn group(&self, call: &Call<'_>, ops: &[Collective<'_>]) -> Result<()> {
        // SAFETY: `ncclGroupStart` (nccl.h, "Group semantics") is ended below on this thread.
        unsafe { call.nccl.group_start() }.map_err(nccl_error)?;
        let issued = ops.iter().try_for_each(|op| self.issue(call, op));
        // SAFETY: As above; a group must be ended also after a failure inside.
        let ended = unsafe { call.nccl.group_end() }.map_err(nccl_error);
        issued.and(ended)
    }

    fn issue(&self, call: &Call<'_>, op: &Collective<'_>) -> Result<()> {
        let dtype = match op.op {
            Op::Barrier => DataType::INT32,
            _ => convert::data_type(op.dtype)?,
        };
        let op_of = |reduction| match reduction {
            ReduceOp::PreMulSum(scalar) => Reduction::Scaled(scalar),
            other => convert::reduction(other).map_or(Reduction::None, Reduction::Plain),
        };
        let op_code = match (op.op, op.reduction()) {
            (Op::Barrier, _) => Reduction::Plain(RedOp::SUM),
            _ if divides(op) => Reduction::Plain(RedOp::SUM),
            (_, Some(reduction)) => op_of(reduction),
            (_, None) => Reduction::None,
        };
        let arithmetic = Arithmetic { dtype, op: op_code };
        let selection = self.selection(op);
        mapping::steps(
            op,
            self.rank,
            self.world_size,
            self.barrier.addr(),
            &mut |step| call.step(step, arithmetic, selection),
        )
    }

    /// What the library is told to choose from, for a call on windows that a kernel serves.
    #[inline]
    fn selection(&self, op: &Collective<'_>) -> Option<&'static CStr> {
        if self.algorithm == Algorithm::Auto {
            return None;
        }
        let rule = self.table.rule(op, self.rank, self.world_size).ok()?;
        let in_windows = (!rule.needs.send() || op.send.window.is_some())
            && (!rule.needs.recv() || op.recv.window.is_some());
        in_windows
            .then(|| self.algorithm.selection(op.kind()))
            .flatten()
    }
}

/// Where calls go.
struct Call<'a> {
    nccl: &'a Nccl,
    comm: Comm,
    stream: Stream,
}

impl Call<'_> {
    fn step(&self, step: Step, arithmetic: Arithmetic, selection: Option<&CStr>) -> Result<()> {
        match arithmetic.op {
            Reduction::Scaled(scalar) => self.scaled(scalar, arithmetic.dtype, |op| {
                self.call(step, arithmetic.dtype, op, selection)
            }),
            Reduction::Plain(op) => self.call(step, arithmetic.dtype, op, selection),
            Reduction::None => self.call(step, arithmetic.dtype, RedOp::SUM, selection),
        }
    }

    /// Runs a call with a reduction that multiplies by a scalar first.
    fn scaled(
        &self,
        scalar: Scalar,
        dtype: DataType,
        call: impl FnOnce(RedOp) -> Result<()>,
    ) -> Result<()> {
        let mut bits = scalar.bits();
        let mut op = RedOp::SUM;
        // SAFETY: `ncclRedOpCreatePreMulSum` (nccl.h): the scalar lies on the host, is at least as
        // long as an element, and is read before this returns.
        unsafe {
            self.nccl.red_op_create_pre_mul_sum(
                &raw mut op,
                (&raw mut bits).cast(),
                dtype,
                ScalarResidence::HOST_IMMEDIATE,
                self.comm,
            )
        }
        .map_err(nccl_error)?;
        let called = call(op);
        // SAFETY: `ncclRedOpDestroy` (nccl.h) may be called when the last call that was given the
        // operator has returned.
        let destroyed = unsafe { self.nccl.red_op_destroy(op, self.comm) }.map_err(nccl_error);
        called.and(destroyed)
    }

    #[expect(
        clippy::multiple_unsafe_ops_per_block,
        reason = "one of them runs, and all have one reason to be sound"
    )]
    fn call(&self, step: Step, dtype: DataType, op: RedOp, selection: Option<&CStr>) -> Result<()> {
        let Self { nccl, comm, stream } = *self;
        if let Some(selection) = selection {
            return self.selected(step, dtype, op, selection);
        }
        // SAFETY: nccl.h, "Collective communication operations" and "Send", "Recv": the operands
        // are as long as the checks of `Collective::check` found, valid by the caller of `enqueue`,
        // and the communicator cannot be freed while its gate is held.
        let called = unsafe {
            match step {
                Step::AllReduce { send, recv, count } => {
                    nccl.all_reduce(send.as_ptr(), recv.as_ptr(), count, dtype, op, comm, stream)
                }
                Step::ReduceScatter { send, recv, count } => nccl.reduce_scatter(
                    send.as_ptr(),
                    recv.as_ptr(),
                    count,
                    dtype,
                    op,
                    comm,
                    stream,
                ),
                Step::AllGather { send, recv, count } => {
                    nccl.all_gather(send.as_ptr(), recv.as_ptr(), count, dtype, comm, stream)
                }
                Step::Broadcast {
                    send,
                    recv,
                    count,
                    root,
                } => nccl.broadcast(
                    send.as_ptr(),
                    recv.as_ptr(),
                    count,
                    dtype,
                    convert::rank(root)?,
                    comm,
                    stream,
                ),
                Step::Reduce {
                    send,
                    recv,
                    count,
                    root,
                } => nccl.reduce(
                    send.as_ptr(),
                    recv.as_ptr(),
                    count,
                    dtype,
                    op,
                    convert::rank(root)?,
                    comm,
                    stream,
                ),
                Step::Send { send, count, to } => nccl.send(
                    send.as_ptr(),
                    count,
                    dtype,
                    convert::rank(to)?,
                    comm,
                    stream,
                ),
                Step::Recv { recv, count, from } => nccl.recv(
                    recv.as_ptr(),
                    count,
                    dtype,
                    convert::rank(from)?,
                    comm,
                    stream,
                ),
            }
        };
        called.map_err(nccl_error)
    }

    /// A call that uses one of the selected kernels or fails.
    #[expect(
        clippy::multiple_unsafe_ops_per_block,
        reason = "one of them runs, and all have one reason to be sound"
    )]
    fn selected(&self, step: Step, dtype: DataType, op: RedOp, selection: &CStr) -> Result<()> {
        let Self { nccl, comm, stream } = *self;
        let mut config = CollConfig::new();
        config.alg_selection = selection.as_ptr();
        let config = &raw const config;
        // SAFETY: As in `call`; the configuration lives until the call returns (nccl.h,
        // "Per-collective configuration").
        let called = unsafe {
            match step {
                Step::AllReduce { send, recv, count } => nccl.all_reduce_config(
                    send.as_ptr(),
                    recv.as_ptr(),
                    count,
                    dtype,
                    op,
                    comm,
                    stream,
                    config,
                ),
                Step::ReduceScatter { send, recv, count } => nccl.reduce_scatter_config(
                    send.as_ptr(),
                    recv.as_ptr(),
                    count,
                    dtype,
                    op,
                    comm,
                    stream,
                    config,
                ),
                Step::AllGather { send, recv, count } => nccl.all_gather_config(
                    send.as_ptr(),
                    recv.as_ptr(),
                    count,
                    dtype,
                    comm,
                    stream,
                    config,
                ),
                _ => return self.call(step, dtype, op, None),
            }
        };
        called.map_err(nccl_error)
    }
}
