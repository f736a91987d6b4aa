//! The device around another.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use collectives_core::addr::Addr;
use collectives_core::device::Device;
use collectives_core::error::{Error, Result, Unsupported};
use collectives_core::graph::{ChildGraphs, GraphTemplate, Graphs};
use collectives_core::memory::Memory;
use collectives_core::rank::{CaptureId, DeviceId};
use collectives_core::stream::{Fence, Stream, StreamRef};

use crate::interpose::graph::{GraphHooks, Launch, Template};

/// What may be done around the calls of a device. Every hook forwards by default.
#[expect(
    clippy::missing_errors_doc,
    reason = "every hook fails as the device's method of the same name does"
)]
pub trait Interpose: Debug + Send + Sync + 'static {
    /// Asks for the capture of a stream.
    fn capture_state(&self, inner: &dyn Device, stream: &StreamRef) -> Result<Option<CaptureId>> {
        inner.capture_state(stream)
    }

    /// Allocates ordinary memory.
    fn allocate(&self, inner: &dyn Device, bytes: usize) -> Result<Memory> {
        inner.allocate(bytes)
    }

    /// Gives the captured graph a share of memory.
    fn retain(&self, inner: &dyn Device, stream: &StreamRef, memory: Memory) -> Result<()> {
        inner.retain(stream, memory)
    }

    /// The bytes a copy is to move, which the hook may shorten; called before the copy.
    fn copying(
        &self,
        inner: &dyn Device,
        dst: Addr,
        src: Addr,
        bytes: usize,
        stream: &StreamRef,
    ) -> Result<usize> {
        let _ = (inner, dst, src, stream);
        Ok(bytes)
    }

    /// The host is about to write or read memory, behind everything on the stream.
    fn accessing(&self, addr: Addr, bytes: usize, writes: bool, stream: &StreamRef) {
        let _ = (addr, bytes, writes, stream);
    }

    /// Orders two streams.
    fn order(&self, inner: &dyn Device, earlier: &StreamRef, later: &StreamRef) -> Result<()> {
        inner.order(earlier, later)
    }

    /// Makes a fence.
    fn create_fence(&self, inner: &dyn Device) -> Result<Fence> {
        inner.create_fence()
    }

    /// Waits for a fence.
    fn wait(&self, inner: &dyn Device, fence: &Fence, stream: &StreamRef) -> Result<()> {
        inner.wait(fence, stream)
    }

    /// Records a fence.
    fn record(&self, inner: &dyn Device, fence: &Fence, stream: &StreamRef) -> Result<()> {
        inner.record(fence, stream)
    }

    /// Records a fence after eager work.
    fn record_eager(&self, inner: &dyn Device, fence: &Fence, stream: &StreamRef) -> Result<()> {
        inner.record_eager(fence, stream)
    }

    /// The host has waited for everything on the stream.
    fn waited(&self, stream: &StreamRef) {
        let _ = stream;
    }

    /// What to do with a branch that is about to leave a capture for its trunk to go on.
    fn joining(&self, trunk: &StreamRef, branch: &StreamRef) -> Launch {
        let _ = (trunk, branch);
        Launch::Go
    }

    /// A stream joined the capture of another, or left it for the other to go on.
    fn joined(&self, trunk: &StreamRef, branch: &StreamRef) {
        let _ = (trunk, branch);
    }

    /// What to do with a graph that becomes a node of the stream's capture; called before it does. The
    /// hooks are those of the child, if it has any of this layer.
    fn embedding(
        &self,
        inner: &dyn Device,
        stream: &StreamRef,
        child: Option<&Arc<dyn GraphHooks>>,
    ) -> Launch {
        let _ = (inner, stream, child);
        Launch::Go
    }

    /// A capture ended in a graph; the hooks returned are called around its use.
    fn captured(&self, capture: Option<CaptureId>) -> Option<Arc<dyn GraphHooks>> {
        let _ = capture;
        None
    }
}

/// A device with hooks around its calls; it is the same device to everybody else.
#[derive(Debug)]
pub struct Interposed<I> {
    inner: Arc<dyn Device>,
    hooks: Arc<I>,
}

impl<I: Interpose> Interposed<I> {
    /// Puts hooks around a device.
    pub fn new(inner: Arc<dyn Device>, hooks: Arc<I>) -> Self {
        Self { inner, hooks }
    }
}

// SAFETY: Everything is forwarded, so the promises are the inner device's, apart from hooks that
// plant a bug: while one is planted, freed symmetric memory stays mapped and no graph that uses freed
// memory is launched, so that a broken promise is a wrong result and not a fault.
unsafe impl<I: Interpose> Device for Interposed<I> {
    fn id(&self) -> DeviceId {
        self.inner.id()
    }

    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    fn is_host(&self) -> bool {
        self.inner.is_host()
    }

    fn create_stream(&self) -> Result<Stream> {
        self.inner.create_stream()
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        self.hooks.allocate(&*self.inner, bytes)
    }

    fn capture_state(&self, stream: &StreamRef) -> Result<Option<CaptureId>> {
        self.hooks.capture_state(&*self.inner, stream)
    }

    fn retain(&self, stream: &StreamRef, memory: Memory) -> Result<()> {
        self.hooks.retain(&*self.inner, stream, memory)
    }

    unsafe fn copy(&self, dst: Addr, src: Addr, bytes: usize, stream: &StreamRef) -> Result<()> {
        let bytes = self.hooks.copying(&*self.inner, dst, src, bytes, stream)?;
        // SAFETY: By the caller; the hook only shortens.
        unsafe { self.inner.copy(dst, src, bytes, stream) }
    }

    unsafe fn write(&self, dst: Addr, src: &[u8], stream: &StreamRef) -> Result<()> {
        self.hooks.accessing(dst, src.len(), true, stream);
        // SAFETY: By the caller.
        unsafe { self.inner.write(dst, src, stream) }?;
        self.hooks.waited(stream);
        Ok(())
    }

    unsafe fn read(&self, dst: &mut [u8], src: Addr, stream: &StreamRef) -> Result<()> {
        self.hooks.accessing(src, dst.len(), false, stream);
        // SAFETY: By the caller.
        unsafe { self.inner.read(dst, src, stream) }?;
        self.hooks.waited(stream);
        Ok(())
    }

    fn order(&self, earlier: &StreamRef, later: &StreamRef) -> Result<()> {
        self.hooks.order(&*self.inner, earlier, later)
    }

    fn create_fence(&self) -> Result<Fence> {
        self.hooks.create_fence(&*self.inner)
    }

    fn wait(&self, fence: &Fence, stream: &StreamRef) -> Result<()> {
        self.hooks.wait(&*self.inner, fence, stream)
    }

    fn record(&self, fence: &Fence, stream: &StreamRef) -> Result<()> {
        self.hooks.record(&*self.inner, fence, stream)
    }

    fn record_eager(&self, fence: &Fence, stream: &StreamRef) -> Result<()> {
        self.hooks.record_eager(&*self.inner, fence, stream)
    }

    fn query(&self, stream: &StreamRef) -> Result<bool> {
        let idle = self.inner.query(stream)?;
        if idle {
            self.hooks.waited(stream);
        }
        Ok(idle)
    }

    fn synchronize(&self, stream: &StreamRef) -> Result<()> {
        let waited = self.inner.synchronize(stream);
        self.hooks.waited(stream);
        waited
    }

    fn collect(&self) {
        self.inner.collect();
    }

    fn graphs(&self) -> Option<&dyn Graphs> {
        self.inner.graphs().map(|_| -> &dyn Graphs { self })
    }
}

impl<I: Interpose> Interposed<I> {
    fn inner_graphs(&self) -> Result<&dyn Graphs> {
        self.inner
            .graphs()
            .ok_or_else(|| Error::unsupported(Unsupported::Graphs))
    }
}

// SAFETY: As for `Device`.
unsafe impl<I: Interpose> Graphs for Interposed<I> {
    unsafe fn begin(&self, stream: &StreamRef) -> Result<CaptureId> {
        // SAFETY: By the caller.
        unsafe { self.inner_graphs()?.begin(stream) }
    }

    unsafe fn fork(&self, trunk: &StreamRef, branch: &StreamRef) -> Result<()> {
        // SAFETY: By the caller.
        unsafe { self.inner_graphs()?.fork(trunk, branch) }?;
        self.hooks.joined(trunk, branch);
        Ok(())
    }

    unsafe fn join(&self, trunk: &StreamRef, branch: &StreamRef) -> Result<()> {
        if self.hooks.joining(trunk, branch) == Launch::Skip {
            return Ok(());
        }
        // SAFETY: By the caller.
        unsafe { self.inner_graphs()?.join(trunk, branch) }?;
        self.hooks.joined(trunk, branch);
        Ok(())
    }

    unsafe fn end(&self, stream: &StreamRef) -> Result<Box<dyn GraphTemplate>> {
        let capture = self.inner.capture_state(stream).ok().flatten();
        // SAFETY: By the caller.
        let template = unsafe { self.inner_graphs()?.end(stream) };
        // Asked also after an error, so that the hooks forget the capture.
        let hooks = self.hooks.captured(capture);
        let template = template?;
        Ok(match hooks {
            Some(hooks) => Box::new(Template::new(template, hooks)),
            None => template,
        })
    }

    fn children(&self) -> Option<&dyn ChildGraphs> {
        let inner = self.inner.graphs()?.children();
        inner.map(|_| -> &dyn ChildGraphs { self })
    }
}

// SAFETY: As for `Device`.
unsafe impl<I: Interpose> ChildGraphs for Interposed<I> {
    unsafe fn embed(&self, stream: &StreamRef, child: &dyn GraphTemplate) -> Result<()> {
        let children = self.inner_graphs()?.children();
        let children = children.ok_or_else(|| Error::unsupported(Unsupported::ChildGraphs))?;
        let any: &dyn Any = child;
        let (child, hooks) = match any.downcast_ref::<Template>() {
            Some(template) => template.parts(),
            None => (child, None),
        };
        if self.hooks.embedding(&*self.inner, stream, hooks) == Launch::Skip {
            return Ok(());
        }
        // SAFETY: By the caller.
        unsafe { children.embed(stream, child) }
    }
}
