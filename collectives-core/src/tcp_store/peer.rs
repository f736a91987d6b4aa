//! What the store knows about each rank of the world, and the way to reach it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A frame that several ranks may get.
pub(super) type Shared = Arc<[u8]>;

/// Where a rank of the world stands.
#[derive(Debug)]
pub(super) enum Peer {
    /// It has not connected yet.
    Awaited,
    /// A connection has introduced itself as this rank and not yet confirmed that it lives.
    Arriving,
    /// It is connected.
    Here(Outbox),
    /// It went in an orderly way.
    Left,
    /// It failed, or its connection was lost.
    Failed(String),
}

impl Peer {
    /// Whether the rank will never do anything again.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Self::Left | Self::Failed(_))
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self, Self::Arriving | Self::Here(_))
    }

    pub(super) fn send(&self, frame: &Shared) {
        if let Self::Here(outbox) = self {
            outbox.send(frame);
        }
    }
}

/// Frames on their way to one rank: nobody who holds the store's lock ever waits for a socket.
#[derive(Debug)]
pub(super) struct Outbox {
    frames: Sender<Shared>,
    unsent: Arc<AtomicUsize>,
}

/// The other end of an [`Outbox`].
#[derive(Debug)]
pub(super) struct Outgoing {
    frames: Receiver<Shared>,
    unsent: Arc<AtomicUsize>,
}

/// An outbox and its other end; `unsent` counts the frames in it.
pub(super) fn outbox(unsent: &Arc<AtomicUsize>) -> (Outbox, Outgoing) {
    let (sender, receiver) = channel();
    let outbox = Outbox {
        frames: sender,
        unsent: Arc::clone(unsent),
    };
    let outgoing = Outgoing {
        frames: receiver,
        unsent: Arc::clone(unsent),
    };
    (outbox, outgoing)
}

impl Outbox {
    fn send(&self, frame: &Shared) {
        self.unsent.fetch_add(1, Ordering::SeqCst);
        if self.frames.send(Arc::clone(frame)).is_err() {
            self.unsent.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Outgoing {
    /// Hands every frame to `write`, until the outbox is dropped or `write` fails.
    pub(super) fn drain<E>(&self, mut write: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        while let Ok(frame) = self.frames.recv() {
            let written = write(&frame);
            self.unsent.fetch_sub(1, Ordering::SeqCst);
            written?;
        }
        Ok(())
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // What the writer did not get to is not on its way any more.
        for _ in self.frames.try_iter() {
            self.unsent.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
