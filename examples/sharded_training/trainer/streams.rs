//! The streams of a step, which runs at once or is captured.

use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::graph::Capture;
use collectives_core::stream::Stream;

/// One stream computes; beside it the next layer is gathered and the previous one scattered.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) compute: Stream,
    pub(crate) gather: Stream,
    pub(crate) scatter: Stream,
}

impl Streams {
    pub(crate) fn new(device: &dyn Device) -> Result<Self> {
        Ok(Self {
            compute: device.create_stream()?,
            gather: device.create_stream()?,
            scatter: device.create_stream()?,
        })
    }
}

/// What becomes of the work of a step.
#[derive(Debug)]
pub(crate) enum Site<'s> {
    /// It runs. Buffers order their uses, so nothing else has to.
    Eager(&'s Streams),
    /// It is captured on the stream that computes; the others are branches.
    Captured {
        capture: &'s Capture<'s>,
        gather: &'s mut Stream,
        scatter: &'s mut Stream,
    },
}

/// The streams to use beside each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lanes<'s> {
    pub(crate) compute: &'s Stream,
    pub(crate) gather: &'s Stream,
    pub(crate) scatter: &'s Stream,
}

impl Site<'_> {
    /// The stream that computes.
    pub(crate) fn compute(&self) -> &Stream {
        match self {
            Self::Eager(streams) => &streams.compute,
            Self::Captured { capture, .. } => capture.stream(),
        }
    }

    /// Runs `body`, whose work on one stream must not need that on another. A graph does no more on
    /// any of them before it is all done.
    pub(crate) fn beside<R>(&mut self, body: impl FnOnce(Lanes<'_>) -> Result<R>) -> Result<R> {
        match self {
            Self::Eager(Streams {
                compute,
                gather,
                scatter,
            }) => body(Lanes {
                compute,
                gather,
                scatter,
            }),
            Self::Captured {
                capture,
                gather,
                scatter,
            } => {
                let compute = capture.stream();
                capture.branch(gather, |gather| {
                    capture.branch(scatter, |scatter| {
                        body(Lanes {
                            compute,
                            gather,
                            scatter,
                        })
                    })
                })
            }
        }
    }
}
