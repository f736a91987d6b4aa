//! Which kernels serve a call.
//!
//! Written from what NCCL does, and from nothing of the backend's table.

use std::ffi::{CStr, c_char};

use crate::arithmetic::Reduction;
use crate::calls::{Call, Op};
use crate::communicators::is_at_least;
use crate::world::World;

/// From how many bytes on one side in a window is enough, since 2.31.
const LARGE: usize = 256 << 10;

impl World {
    /// Whether a symmetric kernel serves a call, and the window and offset of each operand that it
    /// needs to lie in one.
    pub(crate) fn path(&self, call: &Call) -> Option<[Option<(u64, usize)>; 2]> {
        let comm = self.nccl.communicators.get(&call.comm)?;
        let [send, recv] = [call.send, call.recv].map(|at| self.window_at(call.comm, at));
        // Element types from 6 on are floating-point numbers; 8 is the double.
        let is_reduced = call.dtype >= 6 && call.dtype != 8;
        let (kernel, needs_send, needs_recv) = match (call.op, call.reduction) {
            (Op::AllReduce, Reduction::Sum) => (is_reduced, true, true),
            (Op::ReduceScatter, Reduction::Sum | Reduction::Average) => (is_reduced, true, false),
            (Op::AllGather, _) => (true, false, true),
            _ => (false, false, false),
        };
        let larger = call.ranges(comm.rank, comm.ranks).map(|(_, bytes)| bytes);
        let is_small = larger.into_iter().max().unwrap_or(0) < LARGE;
        let both = is_small && is_at_least(2_31_00);
        let send = send.filter(|_| needs_send || both);
        let recv = recv.filter(|_| needs_recv || both);
        let serves = kernel
            && comm.ranks > 1
            && (send.is_some() || !(needs_send || both))
            && (recv.is_some() || !(needs_recv || both));
        serves.then_some([send, recv])
    }

    /// Whether the library would look for a symmetric kernel that does not exist.
    pub(crate) fn has_no_kernel(&self, call: &Call) -> bool {
        let sum = Call {
            reduction: Reduction::Sum,
            ..call.clone()
        };
        let averages = (call.op, call.reduction) == (Op::AllReduce, Reduction::Average);
        averages && self.path(&sum).is_some()
    }

    /// The name of the kernel that serves a call.
    pub(crate) fn kernel(&self, call: &Call) -> *const c_char {
        let symmetric = self.path(call).is_some();
        let name: &CStr = match (call.op, symmetric) {
            (Op::AllReduce, true) => c"ncclSymkDevKernel_AllReduce",
            (Op::AllReduce, false) => c"ncclDevKernel_AllReduce",
            (Op::AllGather, true) => c"ncclSymkDevKernel_AllGather",
            (Op::AllGather, false) => c"ncclDevKernel_AllGather",
            (Op::ReduceScatter, true) => c"ncclSymkDevKernel_ReduceScatter",
            (Op::ReduceScatter, false) => c"ncclDevKernel_ReduceScatter",
            (Op::Reduce, _) => c"ncclDevKernel_Reduce",
            (Op::Broadcast, _) => c"ncclDevKernel_Broadcast",
            (Op::Send | Op::Recv, _) => c"ncclDevKernel_SendRecv",
        };
        name.as_ptr()
    }
}
