//! Graphs of one all-reduce: captured, launched with new inputs, every element compared.

use std::sync::Arc;

use collectives_core::buffer::Buffer;
use collectives_core::error::{Error, Result};
use collectives_core::graph::{Capture, Executable, Graph, GraphExecutable};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;
use collectives_core::stream::Stream;

use super::{Handle, Rig};
use crate::case::{Failure, Outcome, refused};

impl Rig<'_> {
    /// Captures on the case's first stream.
    ///
    /// # Errors
    ///
    /// Those of `body` and of the capture.
    pub fn capture<R>(
        &mut self,
        body: impl FnOnce(&Capture<'_>) -> Result<R>,
    ) -> Result<(Graph, R)> {
        let device = Arc::clone(&self.device);
        let capture = Capture::begin(&*device, &mut self.stream)?;
        let result = body(&capture)?;
        Ok((capture.end()?, result))
    }

    /// A graph of one all-reduce in place over a fresh tensor of this many elements.
    ///
    /// # Errors
    ///
    /// Those of the calls.
    pub fn captured(&mut self, handle: &mut Handle, count: usize) -> Outcome<(Graph, Buffer<f32>)> {
        let mut tensor = self.tensor::<f32>(count, 0)?;
        let (graph, _) = self
            .capture(|capture| handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream()))?;
        Ok((graph, tensor))
    }

    /// As [`Rig::captured`] of this many bytes, with the slot reserved before, ready to launch.
    ///
    /// # Errors
    ///
    /// Those of the calls.
    pub fn replay_of(&mut self, handle: &mut Handle, bytes: usize) -> Outcome<Replay> {
        let _plan = handle.reserve(&[Request::new(bytes)])?;
        let (graph, tensor) = self.captured(handle, bytes / 4)?;
        Replay::new(&graph, tensor)
    }

    /// The error of one all-reduce that a capture has no slot for; the capture goes on and ends.
    ///
    /// # Errors
    ///
    /// Those of the capture, and a call that succeeds.
    pub fn missed(&mut self, handle: &mut Handle, count: usize) -> Outcome<Error> {
        let mut tensor = self.tensor::<f32>(count, 0)?;
        let (_graph, reduced) = self.capture(|capture| {
            Ok(handle.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream()))
        })?;
        refused("a miss in a capture", reduced)
    }

    /// A capture that must fail, because a stream that joined it is not joined back; gives its error.
    ///
    /// # Errors
    ///
    /// Those of `body` and of the fork, and a capture that succeeds.
    pub fn failing_capture(&mut self, body: impl FnOnce(&Stream) -> Result<()>) -> Outcome<Error> {
        let device = Arc::clone(&self.device);
        let Some(graphs) = device.graphs() else {
            return Err(Failure("the device offers no graphs".to_owned()));
        };
        let lost = device.create_stream()?;
        let stream = &mut self.stream;
        // SAFETY: The stream is borrowed mutably, so nobody else is using it.
        unsafe { graphs.begin(stream) }?;
        // SAFETY: Nobody else knows the other stream.
        let forked = unsafe { graphs.fork(stream, &lost) };
        // A branch on which nothing happens counts as joined on some devices.
        let fence = device.create_fence();
        let marked = fence.and_then(|fence| device.record(&fence, &lost));
        let done = body(stream);
        // SAFETY: As above.
        let ended = unsafe { graphs.end(stream) };
        forked?;
        marked?;
        done?;
        refused("a capture with a lost branch", ended)
    }

    /// A graph of one staged all-reduce as a framework captures and launches it: through the
    /// device's own graphs, without this crate's order of launches.
    ///
    /// # Errors
    ///
    /// Those of the calls.
    pub fn framework_graph(&mut self, handle: &mut Handle, count: usize) -> Outcome<Framework> {
        let _plan = handle.reserve(&[Request::new(count * 4)])?;
        let mut tensor = self.tensor::<f32>(count, 0)?;
        let device = Arc::clone(&self.device);
        let Some(graphs) = device.graphs() else {
            return Err(Failure("the device offers no graphs".to_owned()));
        };
        let stream = &mut self.stream;
        // SAFETY: The stream is borrowed mutably, so nobody else is using it.
        unsafe { graphs.begin(stream) }?;
        let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, stream);
        // SAFETY: As above.
        let graph = unsafe { graphs.end(stream) }?;
        reduced?;
        Ok(Framework {
            tensor,
            executable: graph.instantiate()?,
        })
    }

    /// New inputs, one launch, every element compared.
    ///
    /// # Errors
    ///
    /// Those of the calls, and a wrong element.
    pub fn replay(&self, replay: &mut Replay, round: usize, stream: &Stream) -> Outcome {
        let input = self.input(replay.tensor.len(), round);
        replay.tensor.write(&input, stream)?;
        replay.executable.launch(&*self.device, stream)?;
        let what = format!("replay of {} elements, round {round}", replay.tensor.len());
        self.expect_sum(&what, &replay.tensor, round, stream)
    }
}

/// A graph of one all-reduce in place.
#[derive(Debug)]
pub struct Replay {
    /// What it reduces.
    pub tensor: Buffer<f32>,
    /// The graph.
    pub executable: Executable,
}

impl Replay {
    /// What a captured graph and the tensor that it reduces make.
    ///
    /// # Errors
    ///
    /// As [`Graph::instantiate`].
    pub fn new(graph: &Graph, tensor: Buffer<f32>) -> Outcome<Self> {
        let executable = graph.instantiate()?;
        Ok(Self { tensor, executable })
    }
}

/// A graph of one all-reduce in place, launched as a framework does.
#[derive(Debug)]
pub struct Framework {
    /// What it reduces.
    pub tensor: Buffer<f32>,
    executable: Box<dyn GraphExecutable>,
}

impl Framework {
    /// Writes the tensor on the stream that the graph is launched on.
    ///
    /// # Errors
    ///
    /// As [`Buffer::write`].
    pub fn write(&mut self, values: &[f32], stream: &Stream) -> Result<()> {
        self.tensor.write(values, stream)
    }

    /// Launches the graph, on the stream that its tensor is written and read on.
    ///
    /// # Errors
    ///
    /// As [`GraphExecutable::launch`].
    pub fn launch(&mut self, stream: &Stream) -> Result<()> {
        // SAFETY: A graph's tensor is used on one stream only, which cases keep to; its slot is
        // ordered by nodes of the graph, which is what they find out.
        unsafe { self.executable.launch(stream) }
    }
}
