//! Orders a use of counted memory after its last use, whichever stream that was on.

use crate::device::Device;
use crate::error::{Misuse, Result};
use crate::memory::Memory;
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

/// Runs `enqueue` with `stream` ordered after the last user of each memory, and makes `stream`
/// their last user. Sorts `memories`.
///
/// The locks are taken in the order of memory ids, each once, and held until `enqueue` returns, so
/// that nobody can slip between the order and the use. Not for capturing streams: replays are
/// ordered when they are launched.
pub(crate) fn exclusively<R>(
    device: &dyn Device,
    memories: &mut [&Memory],
    stream: &StreamRef,
    enqueue: impl FnOnce() -> Result<R>,
) -> Result<R> {
    if stream.device() != device.id() {
        return Err(Misuse::WrongDevice { what: "the stream" }.into());
    }
    if memories.iter().any(|memory| memory.device() != device.id()) {
        return Err(Misuse::WrongDevice { what: "the memory" }.into());
    }
    memories.sort_unstable_by_key(|memory| memory.id());
    locked(device, memories, stream, enqueue)
}

/// The common calls use one or two memories, whose guards need no heap.
fn locked<R>(
    device: &dyn Device,
    memories: &[&Memory],
    stream: &StreamRef,
    enqueue: impl FnOnce() -> Result<R>,
) -> Result<R> {
    match memories {
        [] => enqueue(),
        [memory] => one(device, memory, stream, enqueue),
        [first, second] if first.id() == second.id() => one(device, first, stream, enqueue),
        [first, second] => one(device, first, stream, || {
            one(device, second, stream, enqueue)
        }),
        many => {
            let distinct = many.chunk_by(|left, right| left.id() == right.id());
            let mut guards: Vec<_> = distinct.map(|same| same[0].lock_last_user()).collect();
            for guard in &guards {
                order_after(device, guard.as_ref(), stream)?;
            }
            let result = enqueue();
            for guard in &mut guards {
                note_user(guard, stream);
            }
            result
        }
    }
}

fn one<R>(
    device: &dyn Device,
    memory: &Memory,
    stream: &StreamRef,
    enqueue: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let mut last = memory.lock_last_user();
    order_after(device, last.as_ref(), stream)?;
    let result = enqueue();
    note_user(&mut last, stream);
    result
}

fn order_after(device: &dyn Device, last: Option<&StreamRef>, stream: &StreamRef) -> Result<()> {
    match last {
        Some(last) if last.id() != stream.id() => device.order(last, stream),
        _ => Ok(()),
    }
}

pub(crate) fn note_user(last: &mut Option<StreamRef>, stream: &StreamRef) {
    if last.as_ref().is_none_or(|last| last.id() != stream.id()) {
        *last = Some(stream.clone());
    }
}
