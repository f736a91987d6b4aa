//! Work that is not a collective: a framework's own kernels, on the memory that collectives use.
//!
//! A framework computes on the buffers it gathers into and scatters from. [`launch`] orders such
//! work as collectives are ordered: after the last use of each tensor, on whichever stream that was,
//! and before the next one. In a capture the graph owns the tensors, as it owns those of a collective.
//! [`StreamRef::raw`](crate::stream::StreamRef::raw) is the stream to launch on, and
//! [`Tensor::operand`] says where the elements are. The host backend's device takes a closure instead
//! (`HostDevice::enqueue` of `collectives-host`).

use crate::device::Device;
use crate::error::Result;
use crate::memory::Memory;
use crate::order;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// Runs `enqueue`, which enqueues work on `stream` that uses these tensors and nothing else of
/// theirs.
///
/// All that the work reads or writes is named, also what it only reads. Nothing waits: `enqueue`
/// returns when its work is enqueued. It must not use the tensors in any other way, since they are
/// locked while it runs, and it is not run where this fails before.
///
/// This is safe, since it does no more than order; launching a kernel on an address is not. Tensors
/// without an owner are left to whoever promised their order.
///
/// # Guarantees
///
/// While `enqueue` runs, and for whatever it enqueued on `stream`, the stream is ordered after the
/// last use of each tensor. Later uses through this crate are ordered after what it enqueued, also
/// where it returned an error or panicked. What it enqueued finds the memory valid, whatever becomes of the
/// handles; work that was captured, at each replay.
///
/// In a capture, uses on different branches are ordered by [`Capture::branch`] alone.
///
/// # Errors
///
/// [`Misuse::WrongDevice`](crate::error::Misuse::WrongDevice), those of [`Device::order`] and
/// [`Device::retain`], and those of `enqueue`.
///
/// [`Capture::branch`]: crate::graph::Capture::branch
pub fn launch<R>(
    device: &dyn Device,
    tensors: &[&dyn Tensor],
    stream: &Stream,
    enqueue: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let owners = tensors.iter().filter_map(|tensor| tensor.owner());
    let mut owners: Vec<&Memory> = owners.collect();
    order::used(device, &mut owners, stream, enqueue)
}
