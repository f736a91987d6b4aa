//! Orders a use of counted memory after its last use, whichever stream that was on.

use crate::device::Device;
use crate::error::{Misuse, Result};
use crate::memory::Memory;
use crate::rank::DeviceId;
use crate::stream::{Stream, StreamRef};

/// Runs `enqueue` with `stream` ordered after the last user of each memory; while the stream
/// captures, its graph becomes an owner of each instead, and replays are ordered when they are
/// launched.
pub(crate) fn used<R>(
    device: &dyn Device,
    memories: &mut [&Memory],
    stream: &Stream,
    enqueue: impl FnOnce() -> Result<R>,
) -> Result<R> {
    if stream.device() != device.id() {
        return Err(Misuse::WrongDevice { what: "the stream" }.into());
    }
    match device.capture_state(stream)? {
        Some(_) => {
            retained(device, memories, stream)?;
            enqueue()
        }
        None => exclusively(device, memories, stream, enqueue),
    }
}

/// Makes the graph that `stream` captures an owner of each memory, or of none.
#[cold]
pub(crate) fn retained(
    device: &dyn Device,
    memories: &[&Memory],
    stream: &StreamRef,
) -> Result<()> {
    if let Some(memory) = memories
        .iter()
        .find(|memory| memory.device() != device.id())
    {
        tracing::debug!(?memory, "memory of another device");
        return Err(Misuse::WrongDevice { what: "the memory" }.into());
    }
    memories
        .iter()
        .try_for_each(|&memory| device.retain(stream, memory.clone()))
}

/// [`exclusively_on`] the device, for a stream that was not checked yet.
pub(crate) fn exclusively<R>(
    device: &dyn Device,
    memories: &mut [&Memory],
    stream: &StreamRef,
    enqueue: impl FnOnce() -> Result<R>,
) -> Result<R> {
    if stream.device() != device.id() {
        return Err(Misuse::WrongDevice { what: "the stream" }.into());
    }
    exclusively_on(device, device.id(), memories, stream, enqueue)
}

/// Runs `enqueue` with `stream`, which is one of this device, ordered after the last user of each
/// memory, and makes `stream` their last user. Sorts `memories`.
///
/// The locks are taken in the order of memory ids, each once, and held until `enqueue` returns, so
/// that nobody can slip between the order and the use. Not for capturing streams: replays are
/// ordered when they are launched.
#[inline]
pub(crate) fn exclusively_on<R>(
    device: &dyn Device,
    id: DeviceId,
    memories: &mut [&Memory],
    stream: &StreamRef,
    enqueue: impl FnOnce() -> Result<R>,
) -> Result<R> {
    if memories.iter().any(|memory| memory.device() != id) {
        return Err(Misuse::WrongDevice { what: "the memory" }.into());
    }
    // The common calls use one or two memories, whose guards need no heap.
    match memories {
        [] => enqueue(),
        [memory] => one(device, memory, stream, enqueue),
        many => several(device, many, stream, enqueue),
    }
}

#[inline(never)]
fn several<R>(
    device: &dyn Device,
    memories: &mut [&Memory],
    stream: &StreamRef,
    enqueue: impl FnOnce() -> Result<R>,
) -> Result<R> {
    memories.sort_unstable_by_key(|memory| memory.id());
    match memories {
        [first, second] if first.id() == second.id() => one(device, first, stream, enqueue),
        [first, second] => one(device, first, stream, || {
            one(device, second, stream, enqueue)
        }),
        many => {
            let distinct = many.chunk_by(|left, right| left.id() == right.id());
            let distinct: Vec<_> = distinct.map(|same| same[0]).collect();
            let mut guards: Vec<_> = distinct
                .iter()
                .map(|memory| memory.lock_last_user())
                .collect();
            for guard in &guards {
                order_after(device, guard.as_ref(), stream)?;
            }
            let result = enqueue();
            for (memory, guard) in distinct.iter().zip(&mut guards) {
                memory.note_locked(guard, stream);
            }
            result
        }
    }
}

#[inline]
fn one<R>(
    device: &dyn Device,
    memory: &Memory,
    stream: &StreamRef,
    enqueue: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let mut last = memory.lock_last_user();
    order_after(device, last.as_ref(), stream)?;
    let result = enqueue();
    memory.note_locked(&mut last, stream);
    result
}

#[inline]
fn order_after(device: &dyn Device, last: Option<&StreamRef>, stream: &StreamRef) -> Result<()> {
    match last {
        Some(last) if !last.is_same_as(stream) => device.order(last, stream),
        _ => Ok(()),
    }
}
