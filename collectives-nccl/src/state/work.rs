//! Eager work on a communicator: which streams may have some that has not finished.

use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use collectives_core::error::Error;
use collectives_core::stream::{StreamHandle as _, StreamRef};

use super::{State, lock};
use crate::device::garbage::ready;
use crate::device::stream::{CudaStream, StreamState};

/// A stream with work that may not have finished.
#[derive(Clone, Debug)]
pub(super) enum Used {
    /// One of ours, which can be asked as long as it is held.
    Owned(StreamRef),
    /// Somebody else's, which may be gone or begin to capture at any moment; its work was marked.
    Foreign(Weak<StreamState>),
}

impl State {
    /// Notes eager work on a stream, after marking its end if the stream is somebody else's.
    #[inline(always)]
    pub(crate) fn note_work(&self, stream: &StreamRef, cuda: &CudaStream) {
        self.enqueued.fetch_add(1, Ordering::SeqCst);
        // After the count and before whoever takes the streams away looks at it again, or behind that
        // and in vain: one of the two sees the other.
        if !ptr::eq(self.noted.load(Ordering::SeqCst), &raw const *cuda.state) {
            self.note_stream(stream, cuda);
        }
    }

    /// Notes that the piece of eager work which is about to be enqueued is messages alone, for which some
    /// ranks need not call.
    pub(crate) fn note_messages(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    /// Eager operations enqueued so far in which all ranks meet.
    pub(crate) fn operations(&self) -> u64 {
        let messages = self.messages.load(Ordering::Relaxed);
        self.enqueued
            .load(Ordering::SeqCst)
            .saturating_sub(messages)
    }

    #[cold]
    fn note_stream(&self, stream: &StreamRef, cuda: &CudaStream) {
        let mut streams = lock(&self.streams);
        // What goes now may come again at the same address.
        self.noted.store(ptr::null_mut(), Ordering::SeqCst);
        streams.retain(|used| !used.is(cuda) && !used.is_gone());
        streams.push(match cuda.is_foreign() {
            true => Used::Foreign(Arc::downgrade(&cuda.state)),
            false => Used::Owned(stream.clone()),
        });
        let noted = Arc::as_ptr(&cuda.state).cast_mut();
        self.noted.store(noted, Ordering::SeqCst);
    }

    /// Whether all eager work enqueued so far has finished, and how much there was.
    pub(crate) fn progress(&self) -> (bool, u64) {
        let enqueued = self.enqueued.load(Ordering::SeqCst);
        let streams = lock(&self.streams).clone();
        let finished = streams.iter().all(|used| self.is_finished(used));
        if finished && self.enqueued.load(Ordering::SeqCst) == enqueued {
            // Nothing holds a stream of ours longer than its work takes.
            drop(self.forget_streams(enqueued));
        }
        (finished, enqueued)
    }

    /// Takes the streams, unless more work was enqueued than this. Whoever enqueues counts first and
    /// looks for its stream then, and here it is the other way round, so nothing is lost between.
    fn forget_streams(&self, enqueued: u64) -> Vec<Used> {
        let mut streams = lock(&self.streams);
        self.noted.store(ptr::null_mut(), Ordering::SeqCst);
        match self.enqueued.load(Ordering::SeqCst) == enqueued {
            true => std::mem::take(&mut *streams),
            false => Vec::new(),
        }
    }

    /// Waits for the eager work that this rank enqueued.
    pub(crate) fn settle(&self, deadline: Duration) -> bool {
        let begun = Instant::now();
        let Ok(_current) = self.device.context.enter_relaxed() else {
            return true;
        };
        let mut pause = Duration::from_micros(20);
        while !self.progress().0 {
            if begun.elapsed() >= deadline || self.failed.load(Ordering::Acquire) {
                return false;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        true
    }

    /// Makes the streams whose work will be cut off return the failure from now on.
    pub(super) fn fail_streams(&self, error: &Error) {
        let Ok(_current) = self.device.context.enter_relaxed() else {
            return;
        };
        let streams = lock(&self.streams).clone();
        for used in streams {
            if !self.is_finished(&used) {
                used.fail(error);
            }
        }
    }

    /// Whether the eager work on a stream has finished. The context is current, in relaxed mode.
    fn is_finished(&self, used: &Used) -> bool {
        let tail = match used {
            Used::Owned(stream) => {
                let cuda = stream.downcast::<CudaStream>();
                return cuda.is_none_or(CudaStream::is_idle);
            }
            Used::Foreign(stream) => stream.upgrade().and_then(|stream| stream.tail()),
        };
        tail.is_none_or(|tail| {
            // SAFETY: `cuEventQuery` (cuda.h, "Event Management"): the state keeps the event.
            ready(unsafe { self.device.driver().event_query(tail) }).unwrap_or(true)
        })
    }
}

impl Used {
    fn is(&self, stream: &CudaStream) -> bool {
        match self {
            Self::Owned(used) => used.id() == stream.id(),
            Self::Foreign(used) => ptr::eq(used.as_ptr(), Arc::as_ptr(&stream.state)),
        }
    }

    fn is_gone(&self) -> bool {
        match self {
            Self::Owned(_) => false,
            Self::Foreign(stream) => stream.strong_count() == 0,
        }
    }

    /// Makes the stream return the failure from now on.
    fn fail(&self, error: &Error) {
        match self {
            Self::Owned(stream) => {
                if let Some(cuda) = stream.downcast::<CudaStream>() {
                    cuda.state.fail(error);
                }
            }
            Self::Foreign(stream) => {
                if let Some(stream) = stream.upgrade() {
                    stream.fail(error);
                }
            }
        }
    }
}
