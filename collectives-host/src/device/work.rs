//! Work of a framework's own, in the order of a stream and in graphs.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use collectives_core::error::Result;
use collectives_core::stream::StreamRef;

use super::{BACKEND, HostDevice};
use crate::capture::{Node, Prepared};
use crate::queue::{Turn, panicked, take_turn};

impl HostDevice {
    /// Enqueues work of a framework's own: `work` runs on the stream after all that was enqueued there before,
    /// and before what is enqueued later, as a kernel does on a GPU.
    ///
    /// While the stream captures, `work` is recorded and not run, and each replay runs it at its place. So it may run
    /// many times, on any thread, though never twice at once; it is dropped with the last graph and
    /// executable that has it. On a stream that runs inline it has run when this returns, on the caller's thread.
    ///
    /// This orders by the stream alone. Work on memory that other streams use as well goes through
    /// [`kernel::launch`](collectives_core::kernel::launch), which orders it after their uses and keeps the memory:
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use collectives_core::buffer::Buffer;
    /// use collectives_core::device::Device;
    /// use collectives_core::error::Result;
    /// use collectives_core::graph::Capture;
    /// use collectives_core::kernel;
    /// use collectives_core::stream::StreamRef;
    /// use collectives_core::tensor::Tensor;
    /// use collectives_host::device::HostDevice;
    /// use collectives_host::model::DeviceModel;
    ///
    /// /// Doubles every element, in stream order.
    /// fn double(device: &HostDevice, values: &Buffer<f32>, stream: &StreamRef) -> Result<()> {
    ///     let (first, count) = (values.operand().addr, values.len());
    ///     device.enqueue(stream, move || {
    ///         // SAFETY: `kernel::launch` keeps the buffer until this has run, and a graph for each replay; it
    ///         // orders this after all other uses and before the next.
    ///         let values = unsafe { std::slice::from_raw_parts_mut(first.as_ptr::<f32>(), count) };
    ///         values.iter_mut().for_each(|value| *value *= 2.0);
    ///         Ok(())
    ///     })
    /// }
    ///
    /// # fn main() -> Result<()> {
    /// let host = HostDevice::new(DeviceModel::new())?;
    /// let device: Arc<dyn Device> = host.clone();
    /// let mut stream = device.create_stream()?;
    /// let values = Buffer::from_slice(&device, &[1.0_f32, 2.0], &stream)?;
    /// kernel::launch(&*device, &[&values], &stream, || double(&host, &values, &stream))?;
    ///
    /// let capture = Capture::begin(&*device, &mut stream)?;
    /// let on = capture.stream();
    /// kernel::launch(&*device, &[&values], on, || double(&host, &values, on))?;
    /// let mut graph = capture.end()?.instantiate()?;
    /// graph.launch(&*device, &stream)?;
    /// graph.launch(&*device, &stream)?;
    /// assert_eq!(values.read(&stream)?, [8.0, 16.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// `work` may wait for other threads, and holds up its stream meanwhile. It must not enqueue on its own
    /// stream or wait for it, since its turn ends when it returns.
    ///
    /// # Errors
    ///
    /// [`Misuse::WrongDevice`](collectives_core::error::Misuse::WrongDevice), and the stream's asynchronous error
    /// or that of its capture; `work` is dropped then. What `work` fails with, and
    /// [`System`](collectives_core::error::ErrorKind::System) with its message where it panics, is returned on an
    /// inline stream, which goes on. On another it is the stream's asynchronous error, after which nothing runs
    /// there any more. In a replay it is the error of the launch or of the stream it was launched on, and
    /// what comes later in that replay does not run.
    pub fn enqueue(
        &self,
        stream: &StreamRef,
        work: impl Fn() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let enqueued = match take_turn(self.queue(stream)?)? {
            Turn::Inline(_turn) => run(&work),
            Turn::Queued(turn) => {
                turn.push(Box::new(move || run(&work)));
                Ok(())
            }
            Turn::Captured(turn) => {
                turn.push(Arc::new(WorkNode(Mutex::new(work))));
                Ok(())
            }
        };
        enqueued.map_err(|error| error.during("enqueue").on_backend(BACKEND))
    }
}

/// Runs work, of which a panic is an error.
fn run(work: &impl Fn() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(panicked(&*payload)))
}

/// Work that was recorded. The lock keeps replays of several executables from running it at once, since it
/// need not be `Sync`.
struct WorkNode<W>(Mutex<W>);

impl<W: Fn() -> Result<()> + Send + 'static> Node for WorkNode<W> {
    fn prepare(self: Arc<Self>) -> Result<Prepared> {
        Ok(Box::new(move || {
            run(&*self.0.lock().unwrap_or_else(PoisonError::into_inner))
        }))
    }

    fn kind(&self) -> &'static str {
        "work"
    }
}

impl<W> fmt::Debug for WorkNode<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkNode")
    }
}
