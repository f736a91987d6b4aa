//! One call of the library, and the operator that some need for it.

use std::ffi::CStr;

use collectives_core::error::Result;
use collectives_core::reduce::Scalar;
use nccl_sys::{CollConfig, Comm, DataType, Nccl, RedOp, ScalarResidence, Stream};

use crate::convert;
use crate::error::nccl_error;
use crate::mapping::Step;

/// Where calls go.
pub(crate) struct Call<'a> {
    pub(crate) nccl: &'a Nccl,
    pub(crate) comm: Comm,
    pub(crate) stream: Stream,
}

/// The element type and reduction of one operation, as NCCL takes them.
#[derive(Clone, Copy)]
pub(crate) struct Arithmetic {
    pub(crate) dtype: DataType,
    pub(crate) op: Reduction,
}

impl Arithmetic {
    /// The plain sum.
    pub(crate) const fn sum(dtype: DataType) -> Self {
        let op = Reduction::Plain(RedOp::SUM);
        Self { dtype, op }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Reduction {
    None,
    Plain(RedOp),
    /// Made for one call.
    Scaled(Scalar),
}

impl Call<'_> {
    /// Makes one call, with the operator that its reduction needs.
    #[inline]
    pub(crate) fn step(
        &self,
        step: Step,
        arithmetic: Arithmetic,
        selection: Option<&CStr>,
    ) -> Result<()> {
        let dtype = arithmetic.dtype;
        let op = match arithmetic.op {
            Reduction::Scaled(scalar) => {
                return self.scaled(scalar, dtype, |op| {
                    self.call_with(step, dtype, op, selection)
                });
            }
            Reduction::Plain(op) => op,
            Reduction::None => RedOp::SUM,
        };
        self.call_with(step, dtype, op, selection)
    }

    /// Makes one call, with what the library is told to choose from.
    #[inline(never)]
    fn call_with(
        &self,
        step: Step,
        dtype: DataType,
        op: RedOp,
        selection: Option<&CStr>,
    ) -> Result<()> {
        match selection {
            Some(selection) => self.selected(step, dtype, op, selection),
            None => self.call(step, dtype, op),
        }
    }

    /// Runs a call with a reduction that multiplies by a scalar first.
    #[inline(never)]
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
    #[inline(always)]
    pub(crate) fn call(&self, step: Step, dtype: DataType, op: RedOp) -> Result<()> {
        let Self { nccl, comm, stream } = *self;
        // SAFETY: nccl.h, "Collective communication operations" and "Send", "Recv": the operands
        // are as long as the checks of `Collective::check` found, valid by the caller of `enqueue`,
        // and the communicator is not freed while a call is inside it.
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
    #[inline(never)]
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
                _ => return self.call(step, dtype, op),
            }
        };
        called.map_err(nccl_error)
    }
}
