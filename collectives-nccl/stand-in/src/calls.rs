//! What ranks ask of the library.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::arithmetic::{self, Reduction};
use crate::communicators::INVALID_ARGUMENT;
use crate::devices::current;
use crate::world::{Handle, Kind, World, functions};

/// `ncclInvalidUsage`.
const INVALID_USAGE: c_int = 5;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Send,
    Recv,
}

/// One call, as it was made.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) comm: Handle,
    pub(crate) op: Op,
    pub(crate) send: usize,
    pub(crate) recv: usize,
    pub(crate) count: usize,
    pub(crate) dtype: c_int,
    pub(crate) reduction: Reduction,
    /// The root or the peer; zero where there is none.
    pub(crate) root: c_int,
}

/// What the functions of the header are given.
struct Numbers {
    comm: Handle,
    op: Op,
    send: usize,
    recv: usize,
    count: usize,
    dtype: c_int,
    reduction: c_int,
    root: c_int,
}

/// What `ncclCollConfig_t` begins with.
#[derive(Debug)]
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    ext: *const c_void,
    numbers: [c_int; 4],
    selection: *const c_char,
    is_forced: c_int,
}

impl Call {
    pub(crate) fn bytes(&self) -> usize {
        self.count * arithmetic::size(self.dtype).unwrap_or(0)
    }

    /// What must be the same on all ranks.
    pub(crate) fn common(&self) -> (Op, usize, c_int, Reduction, c_int) {
        let (op, root) = match self.op {
            // The two halves of a message, each with the other's rank.
            Op::Send | Op::Recv => (Op::Send, 0),
            op => (op, self.root),
        };
        (op, self.count, self.dtype, self.reduction, root)
    }

    /// The ranges that it reads and writes on a rank of so many, either of them perhaps empty.
    pub(crate) fn ranges(&self, rank: c_int, ranks: usize) -> [(usize, usize); 2] {
        let bytes = self.bytes();
        let is_root = self.root == rank;
        let (read, written) = match self.op {
            Op::AllReduce => (bytes, bytes),
            Op::Reduce => (bytes, if is_root { bytes } else { 0 }),
            Op::Broadcast => (if is_root { bytes } else { 0 }, bytes),
            Op::AllGather => (bytes, bytes * ranks),
            Op::ReduceScatter => (bytes * ranks, bytes),
            Op::Send => (bytes, 0),
            Op::Recv => (0, bytes),
        };
        [(self.send, read), (self.recv, written)]
    }
}

impl World {
    /// One call, on its own or in a group.
    fn make_call(&mut self, numbers: Numbers, stream: Handle) -> Result<(), c_int> {
        let call = self.checked(numbers, stream)?;
        self.group_or_submit(call, stream)
    }

    /// One call that may be told which kernels to use.
    fn make_call_with(
        &mut self,
        numbers: Numbers,
        stream: Handle,
        config: *const Config,
    ) -> Result<(), c_int> {
        let call = self.checked(numbers, stream)?;
        // SAFETY: nccl.h has the caller pass null or a configuration, which begins like this.
        if let Some(config) = unsafe { config.as_ref() }
            && !config.selection.is_null()
        {
            // SAFETY: It is a text that ends with zero.
            let selection = unsafe { CStr::from_ptr(config.selection) }.to_string_lossy();
            self.note(format_args!(
                "selection={selection} forced={}",
                config.is_forced
            ));
            let symmetric = selection.starts_with("SYMK");
            if config.is_forced != 0 && symmetric && self.path(&call).is_none() {
                return Err(INVALID_USAGE);
            }
        }
        self.group_or_submit(call, stream)
    }

    fn checked(&mut self, numbers: Numbers, stream: Handle) -> Result<Call, c_int> {
        current()?;
        let Numbers {
            comm,
            op,
            send,
            recv,
            count,
            dtype,
            reduction,
            root,
        } = numbers;
        self.check(comm, Kind::Communicator)?;
        self.check(stream, Kind::Stream)?;
        let ranks = self
            .nccl
            .communicators
            .get(&comm)
            .map_or(0, |comm| comm.ranks);
        let is_rank = usize::try_from(root).is_ok_and(|root| root < ranks);
        if arithmetic::size(dtype).is_none() || !is_rank {
            return Err(INVALID_ARGUMENT);
        }
        let reduction = self.reduction(reduction, comm, dtype)?;
        let scales = matches!(reduction, Reduction::Scaled(_) | Reduction::Average);
        if ranks == 1 && dtype >= 10 && scales {
            // A single rank multiplies by a kernel of its own, which has no 8-bit floats. Seen with 2.30.7.
            return Err(INVALID_ARGUMENT);
        }
        let call = Call {
            comm,
            op,
            send,
            recv,
            count,
            dtype,
            reduction,
            root,
        };
        if self.has_no_kernel(&call) {
            self.wrong
                .push("an average of symmetric memory, for which there is no kernel".to_owned());
        }
        Ok(call)
    }
}

functions! {
    fn ncclAllReduce(
        send: usize, recv: usize, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: Handle,
    ) |world| {
        let (reduction, op, root) = (op, Op::AllReduce, 0);
        world.make_call(Numbers { comm, op, send, recv, count, dtype, reduction, root }, stream)
    }
    fn ncclReduce(
        send: usize, recv: usize, count: usize, dtype: c_int, op: c_int, root: c_int, comm: Handle, stream: Handle,
    ) |world| {
        let (reduction, op) = (op, Op::Reduce);
        world.make_call(Numbers { comm, op, send, recv, count, dtype, reduction, root }, stream)
    }
    fn ncclBroadcast(
        send: usize, recv: usize, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Handle,
    ) |world| {
        let (reduction, op) = (0, Op::Broadcast);
        world.make_call(Numbers { comm, op, send, recv, count, dtype, reduction, root }, stream)
    }
    fn ncclAllGather(
        send: usize, recv: usize, count: usize, dtype: c_int, comm: Handle, stream: Handle,
    ) |world| {
        let (reduction, op, root) = (0, Op::AllGather, 0);
        world.make_call(Numbers { comm, op, send, recv, count, dtype, reduction, root }, stream)
    }
    fn ncclReduceScatter(
        send: usize, recv: usize, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: Handle,
    ) |world| {
        let (reduction, op, root) = (op, Op::ReduceScatter, 0);
        world.make_call(Numbers { comm, op, send, recv, count, dtype, reduction, root }, stream)
    }
    fn ncclSend(send: usize, count: usize, dtype: c_int, peer: c_int, comm: Handle, stream: Handle) |world| {
        let (reduction, op, recv, root) = (0, Op::Send, 0, peer);
        world.make_call(Numbers { comm, op, send, recv, count, dtype, reduction, root }, stream)
    }
    fn ncclRecv(recv: usize, count: usize, dtype: c_int, peer: c_int, comm: Handle, stream: Handle) |world| {
        let (reduction, op, send, root) = (0, Op::Recv, 0, peer);
        world.make_call(Numbers { comm, op, send, recv, count, dtype, reduction, root }, stream)
    }
    fn ncclAllReduceConfig(
        send: usize, recv: usize, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: Handle, config: *const Config,
    ) |world| {
        let (reduction, op, root) = (op, Op::AllReduce, 0);
        world.make_call_with(Numbers { comm, op, send, recv, count, dtype, reduction, root }, stream, config)
    }
    fn ncclReduceScatterConfig(
        send: usize, recv: usize, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: Handle, config: *const Config,
    ) |world| {
        let (reduction, op, root) = (op, Op::ReduceScatter, 0);
        world.make_call_with(Numbers { comm, op, send, recv, count, dtype, reduction, root }, stream, config)
    }
    fn ncclAllGatherConfig(
        send: usize, recv: usize, count: usize, dtype: c_int, comm: Handle, stream: Handle, config: *const Config,
    ) |world| {
        let (reduction, op, root) = (0, Op::AllGather, 0);
        world.make_call_with(Numbers { comm, op, send, recv, count, dtype, reduction, root }, stream, config)
    }
}
