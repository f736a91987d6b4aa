//! Orders a use of counted memory after its last use, whichever stream that was on.

use crate::device::Device;
use crate::error::{Error, Misuse, Result};
use crate::memory::Memory;
use crate::rank::DeviceId;
use crate::stream::{Stream, StreamRef};
use crate::sync::MutexGuard;

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
    check_device(device.id(), memories)?;
    memories
        .iter()
        .try_for_each(|&memory| device.retain(stream, memory.clone()))
}

/// Runs `enqueue` with `stream`, which does not capture, ordered after the last user of each memory, and
/// makes `stream` their last user. Sorts `memories`.
pub(crate) fn exclusively<R>(
    device: &dyn Device,
    memories: &mut [&Memory],
    stream: &StreamRef,
    enqueue: impl FnOnce() -> Result<R>,
) -> Result<R> {
    if stream.device() != device.id() {
        return Err(Misuse::WrongDevice { what: "the stream" }.into());
    }
    check_device(device.id(), memories)?;
    let held = Held::of(memories);
    held.order(device, stream)?;
    let _noted = held.note_at_the_end(stream);
    enqueue()
}

/// Makes the stream the last user when it is dropped, also by a panic: work may have been enqueued by then.
pub(crate) struct Noted<'m, 's> {
    held: Option<Held<'m>>,
    stream: &'s StreamRef,
}

impl Drop for Noted<'_, '_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            held.note(self.stream);
        }
    }
}

/// Refuses memory of another device.
#[inline(always)]
pub(crate) fn check_device(id: DeviceId, memories: &[&Memory]) -> Result<()> {
    match memories.iter().find(|memory| memory.device() != id) {
        None => Ok(()),
        Some(memory) => Err(wrong_device(memory)),
    }
}

#[cold]
fn wrong_device(memory: &Memory) -> Error {
    tracing::debug!(?memory, "memory of another device");
    Misuse::WrongDevice { what: "the memory" }.into()
}

/// Memory that a stream was ordered after, with its last users locked until the use is enqueued.
///
/// Locks are taken in the order of memory ids, each once, so that nobody can slip between the order
/// and the use, and no two can wait for each other.
#[must_use]
pub(crate) enum Held<'m> {
    // Common calls use one or two, whose guards need no heap. None is what a graph owns: replays are
    // ordered when they are launched.
    One(Option<Locked<'m>>),
    Two(Locked<'m>, Locked<'m>),
    Many(Vec<Locked<'m>>),
}

/// Memory whose last user nobody else can change.
pub(crate) struct Locked<'m> {
    memory: &'m Memory,
    last: MutexGuard<'m, Option<StreamRef>>,
}

impl<'m> Held<'m> {
    /// Locks memories of one device; sorts them.
    // Apart from what can fail: returned beside an error, it would be moved field by field.
    #[inline(always)]
    pub(crate) fn of(memories: &mut [&'m Memory]) -> Self {
        match memories {
            [] => Self::One(None),
            [memory] => Self::One(Some(Locked::of(memory))),
            many => Self::several(many),
        }
    }

    #[inline(never)]
    fn several(memories: &mut [&'m Memory]) -> Self {
        memories.sort_unstable_by_key(|memory| memory.id());
        match memories {
            [first, second] if first.id() == second.id() => Self::One(Some(Locked::of(first))),
            [first, second] => Self::Two(Locked::of(first), Locked::of(second)),
            many => {
                let distinct = many.chunk_by(|left, right| left.id() == right.id());
                Self::Many(distinct.map(|same| Locked::of(same[0])).collect())
            }
        }
    }

    /// Orders a stream, which does not capture, after the last user of each.
    #[inline(always)]
    pub(crate) fn order(&self, device: &dyn Device, stream: &StreamRef) -> Result<()> {
        match self {
            Self::One(None) => Ok(()),
            Self::One(Some(one)) => one.order(device, stream),
            more => more.order_all(device, stream),
        }
    }

    #[inline(never)]
    fn order_all(&self, device: &dyn Device, stream: &StreamRef) -> Result<()> {
        match self {
            Self::One(one) => one.iter().try_for_each(|one| one.order(device, stream)),
            Self::Two(first, second) => {
                first.order(device, stream)?;
                second.order(device, stream)
            }
            Self::Many(many) => many.iter().try_for_each(|one| one.order(device, stream)),
        }
    }

    /// Makes the stream the last user when what is returned is dropped, after the use was enqueued.
    #[inline(always)]
    pub(crate) fn note_at_the_end(self, stream: &StreamRef) -> Noted<'m, '_> {
        Noted {
            held: Some(self),
            stream,
        }
    }

    /// Makes the stream the last user.
    #[inline(always)]
    fn note(self, stream: &StreamRef) {
        match self {
            Self::One(None) => {}
            Self::One(Some(one)) => one.note(stream),
            more => more.note_all(stream),
        }
    }

    #[inline(never)]
    fn note_all(self, stream: &StreamRef) {
        match self {
            Self::One(one) => one.into_iter().for_each(|one| one.note(stream)),
            Self::Two(first, second) => {
                first.note(stream);
                second.note(stream);
            }
            Self::Many(many) => many.into_iter().for_each(|one| one.note(stream)),
        }
    }
}

impl<'m> Locked<'m> {
    #[inline(always)]
    fn of(memory: &'m Memory) -> Self {
        let last = memory.lock_last_user();
        Self { memory, last }
    }

    #[inline(always)]
    fn order(&self, device: &dyn Device, stream: &StreamRef) -> Result<()> {
        match self.last.as_ref() {
            Some(last) if !last.is_same_as(stream) => device.order(last, stream),
            _ => Ok(()),
        }
    }

    #[inline(always)]
    fn note(mut self, stream: &StreamRef) {
        self.memory.note_locked(&mut self.last, stream);
    }
}
