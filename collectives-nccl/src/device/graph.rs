//! Capture, graphs and executables of the driver, for users without a framework that has its own.

use std::any::Any;
use std::ffi::CStr;
use std::sync::Arc;

use collectives_core::error::{CaptureFault, Error, ErrorKind, Misuse, Result};
use collectives_core::graph::{ChildGraphs, GraphExecutable, GraphTemplate, Graphs};
use collectives_core::memory::Memory;
use collectives_core::rank::CaptureId;
use collectives_core::stream::{StreamHandle, StreamRef};

use super::CudaDevice;
use super::captures::Contents;
use super::departing::Owner;
use super::event::Event;
use super::garbage::Item;
use super::shared::Shared;
use super::stream::stream_of;
use crate::driver::{
    Code, KernelNode, MODE_THREAD_LOCAL, NODE_KERNEL, RawExecutable, RawGraph, RawNode, UpdateInfo,
    driver_error,
};
use crate::error::BACKEND;

/// A captured graph, with what it was captured with.
#[derive(Debug)]
pub(crate) struct CudaGraph {
    pub(super) raw: RawGraph,
    pub(super) contents: Contents,
    nodes: Vec<RawNode>,
    pub(super) shared: Arc<Shared>,
}

/// An executable of one.
#[derive(Debug)]
struct CudaExecutable {
    raw: RawExecutable,
    contents: Contents,
    /// Where it was launched last.
    last: Option<StreamRef>,
    /// What it was captured with before updates, which the driver may keep until it is destroyed.
    former: Vec<Arc<Owner>>,
    shared: Arc<Shared>,
}

fn not_capturing() -> Error {
    Error::capture(CaptureFault::NotCapturing)
}

// SAFETY: Work on a capturing stream becomes nodes and does not run (CUDA programming guide, "CUDA
// Graphs"); a graph's nodes carry the addresses that were captured; what was retained is owned
// through user objects.
unsafe impl Graphs for CudaDevice {
    unsafe fn begin(&self, stream: &StreamRef) -> Result<CaptureId> {
        capture(self, stream)
    }

    unsafe fn fork(&self, trunk: &StreamRef, branch: &StreamRef) -> Result<()> {
        let (trunk, branch) = (
            stream_of(self.shared.id, trunk)?,
            stream_of(self.shared.id, branch)?,
        );
        let capturing = trunk.capturing()?.ok_or_else(not_capturing)?;
        let before = branch.capturing()?;
        if before.is_some_and(|before| before.id != capturing.id) {
            return Err(Error::capture(CaptureFault::AlreadyCapturing));
        }
        self.shared.captures.fork(capturing.id, branch.id())?;
        let forked = || {
            let _beginning = branch.lock_beginning();
            let _current = self.shared.context.enter()?;
            if before.is_none() {
                branch.mark()?;
            }
            let event = Event::new(&self.shared)?;
            self.order_between(trunk, branch, event.raw)
        };
        forked().inspect_err(|_| self.shared.captures.join(capturing.id, branch.id()))
    }

    unsafe fn join(&self, trunk: &StreamRef, branch: &StreamRef) -> Result<()> {
        let (trunk, branch) = (
            stream_of(self.shared.id, trunk)?,
            stream_of(self.shared.id, branch)?,
        );
        let one = trunk.capturing()?.ok_or_else(not_capturing)?;
        let other = branch.capturing()?.ok_or_else(not_capturing)?;
        if one.id != other.id {
            return Err(Error::capture(CaptureFault::Isolation));
        }
        let _current = self.shared.context.enter()?;
        let event = Event::new(&self.shared)?;
        self.order_between(branch, trunk, event.raw)?;
        self.shared.captures.join(one.id, branch.id());
        Ok(())
    }

    unsafe fn end(&self, stream: &StreamRef) -> Result<Box<dyn GraphTemplate>> {
        end_capture(self, stream).map(|graph| Box::new(graph) as Box<dyn GraphTemplate>)
    }

    fn children(&self) -> Option<&dyn ChildGraphs> {
        Some(self)
    }
}

impl CudaDevice {
    /// The names of the kernels in a graph, in no particular order.
    ///
    /// # Errors
    ///
    /// [`Misuse::WrongDevice`] for a graph of another backend, and when the driver does not tell
    /// names (CUDA 12.3 does).
    pub fn kernel_names(&self, graph: &dyn GraphTemplate) -> Result<Vec<String>> {
        let any: &dyn Any = graph;
        match any.downcast_ref::<CudaGraph>() {
            Some(graph) if graph.shared.id == self.shared.id => kernel_names(graph),
            _ => Err(Misuse::WrongDevice { what: "the graph" }.into()),
        }
    }
}

/// Begins a capture, in thread-local mode.
pub(crate) fn capture(device: &CudaDevice, stream: &StreamRef) -> Result<CaptureId> {
    let shared = &device.shared;
    let cuda = stream_of(shared.id, stream)?;
    cuda.health()?;
    if cuda.capturing()?.is_some() {
        return Err(Error::capture(CaptureFault::AlreadyCapturing));
    }
    let _current = shared.context.enter()?;
    let _beginning = cuda.lock_beginning();
    cuda.mark()?;
    // SAFETY: `cuStreamBeginCapture` (cuda.h, "Stream Management"): the stream is valid and nobody
    // else uses it, by the caller of `Graphs::begin`.
    unsafe {
        shared
            .driver()
            .stream_begin_capture(cuda.raw, MODE_THREAD_LOCAL)
    }?;
    let capturing = cuda.capturing()?.ok_or_else(not_capturing)?;
    shared.captures.begin(capturing.id, stream.id());
    Ok(capturing.id)
}

/// Ends the capture that began on the stream.
pub(crate) fn end_capture(device: &CudaDevice, stream: &StreamRef) -> Result<CudaGraph> {
    let shared = &device.shared;
    let cuda = stream_of(shared.id, stream)?;
    let id = shared
        .captures
        .of_origin(stream.id())
        .ok_or_else(not_capturing)?;
    let _current = shared.context.enter()?;
    let mut raw = RawGraph::NULL;
    // SAFETY: `cuStreamEndCapture` (cuda.h, "Stream Management"): the capture began on this stream.
    let ended = unsafe { shared.driver().stream_end_capture(cuda.raw, &raw mut raw) };
    let contents = shared.captures.end(id);
    if raw == RawGraph::NULL {
        ended?;
        return Err(Error::capture(CaptureFault::Invalidated));
    }
    let graph = CudaGraph::over(raw, contents, Arc::clone(shared));
    ended?;
    graph
}

impl CudaGraph {
    fn over(raw: RawGraph, contents: Contents, shared: Arc<Shared>) -> Result<Self> {
        let mut graph = Self {
            raw,
            contents,
            nodes: Vec::new(),
            shared,
        };
        let driver = graph.shared.driver();
        let mut count = 0;
        // SAFETY: `cuGraphGetNodes` (cuda.h, "Graph Management"): a null array asks for the count.
        unsafe { driver.graph_get_nodes(raw, std::ptr::null_mut(), &raw mut count) }?;
        if count == 0 {
            // An all-reduce in place on a single rank is no work at all.
            return Ok(graph);
        }
        graph.nodes = vec![RawNode::NULL; count];
        // SAFETY: The array has room for `count` nodes.
        unsafe { driver.graph_get_nodes(raw, graph.nodes.as_mut_ptr(), &raw mut count) }?;
        graph.nodes.truncate(count);
        Ok(graph)
    }
}

/// The names of the kernels in a graph.
pub(crate) fn kernel_names(graph: &CudaGraph) -> Result<Vec<String>> {
    let driver = graph.shared.driver();
    let _current = graph.shared.context.enter()?;
    let mut names = Vec::new();
    for &node in &graph.nodes {
        let mut kind = 0;
        // SAFETY: `cuGraphNodeGetType` (cuda.h, "Graph Management"): the graph has this node.
        unsafe { driver.graph_node_get_type(node, &raw mut kind) }?;
        if kind != NODE_KERNEL {
            continue;
        }
        let mut params = KernelNode::EMPTY;
        // SAFETY: `cuGraphKernelNodeGetParams` (same section): a kernel node of this graph.
        unsafe { driver.graph_kernel_node_get_params(node, &raw mut params) }?;
        let mut name = std::ptr::null();
        if params.function.0.is_null() {
            // SAFETY: `cuKernelGetName` (cuda.h, "Library Management"): where there is no
            // function there is a kernel.
            unsafe { driver.kernel_get_name(&raw mut name, params.kernel) }?;
        } else {
            // SAFETY: `cuFuncGetName` (cuda.h, "Execution Control"): the node has the function.
            unsafe { driver.func_get_name(&raw mut name, params.function) }?;
        }
        if !name.is_null() {
            // SAFETY: The name belongs to the loaded module, which stays loaded.
            let name = unsafe { CStr::from_ptr(name) };
            names.push(plain_name(&name.to_string_lossy()).to_owned());
        }
    }
    Ok(names)
}

/// The function's own name in a mangled one: `_Z`, its length, the name, and what it takes.
fn plain_name(symbol: &str) -> &str {
    let named = || {
        let rest = symbol.strip_prefix("_Z")?;
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let (length, name) = rest.split_at(digits);
        name.get(..length.parse().ok()?)
    };
    named().unwrap_or(symbol)
}

impl GraphTemplate for CudaGraph {
    fn duplicate(&self) -> Result<Box<dyn GraphTemplate>> {
        let _current = self.shared.context.enter_relaxed()?;
        let mut raw = RawGraph::NULL;
        // SAFETY: `cuGraphClone` (cuda.h, "Graph Management"): the graph is valid; the clone owns
        // the same user objects.
        unsafe { self.shared.driver().graph_clone(&raw mut raw, self.raw) }?;
        let (contents, shared) = (self.contents.clone(), Arc::clone(&self.shared));
        Ok(Box::new(Self::over(raw, contents, shared)?))
    }

    fn instantiate(&self) -> Result<Box<dyn GraphExecutable>> {
        let _current = self.shared.context.enter_relaxed()?;
        let mut raw = RawExecutable::NULL;
        // SAFETY: `cuGraphInstantiateWithFlags` (cuda.h, "Graph Management"): the graph is valid.
        unsafe {
            self.shared
                .driver()
                .graph_instantiate(&raw mut raw, self.raw, 0)
        }?;
        Ok(Box::new(CudaExecutable {
            raw,
            contents: self.contents.clone(),
            last: None,
            former: Vec::new(),
            shared: Arc::clone(&self.shared),
        }))
    }

    fn owned(&self) -> &[Memory] {
        &self.contents.memories
    }

    fn node_count(&self) -> usize {
        self.nodes.len()
    }
}

impl GraphExecutable for CudaExecutable {
    unsafe fn launch(&mut self, stream: &StreamRef) -> Result<()> {
        let context = |error: Error| error.during("launch").on_backend(BACKEND);
        let cuda = stream_of(self.shared.id, stream)?;
        cuda.health().map_err(context)?;
        if cuda.capturing()?.is_some() {
            return Err(context(Error::capture(CaptureFault::AlreadyCapturing)));
        }
        for communicator in &self.contents.communicators {
            communicator.check_open().map_err(context)?;
        }
        let _current = self.shared.context.enter()?;
        // SAFETY: `cuGraphLaunch` (cuda.h, "Graph Management"): both handles are valid, and what
        // the graph uses is valid because it owns it; order is the caller's promise.
        unsafe { self.shared.driver().graph_launch(self.raw, cuda.raw) }.map_err(context)?;
        if cuda.is_foreign() {
            cuda.mark()?;
        }
        for communicator in &self.contents.communicators {
            communicator.note_work(stream, cuda);
        }
        if self
            .last
            .as_ref()
            .is_none_or(|last| last.id() != stream.id())
        {
            self.last = Some(stream.clone());
        }
        Ok(())
    }

    fn update(&mut self, from: &dyn GraphTemplate) -> Result<()> {
        let any: &dyn Any = from;
        let graph = match any.downcast_ref::<CudaGraph>() {
            Some(graph) if graph.shared.id == self.shared.id => graph,
            _ => return Err(Misuse::WrongDevice { what: "the graph" }.into()),
        };
        let _current = self.shared.context.enter_relaxed()?;
        let mut info = UpdateInfo {
            result: 0,
            node: RawNode::NULL,
            from: RawNode::NULL,
        };
        // SAFETY: `cuGraphExecUpdate` (cuda.h, "Graph Management"): both handles are valid.
        let updated = unsafe {
            self.shared
                .driver()
                .graph_exec_update(self.raw, graph.raw, &raw mut info)
        };
        updated.map_err(|error| match driver_error(&error) {
            Some(Code::UPDATE_FAILURE) => {
                let why = "the graphs differ in shape, so the executable cannot be updated";
                Error::from(Misuse::Other(why.to_owned())).caused_by(error)
            }
            _ => error,
        })?;
        self.former.append(&mut self.contents.owners);
        // Replays in flight still use what the executable owned before.
        let before = std::mem::replace(&mut self.contents, graph.contents.clone());
        let held = Item::Hold(Box::new(before));
        self.shared.garbage.push(held, self.last.clone());
        Ok(())
    }

    fn owned(&self) -> &[Memory] {
        &self.contents.memories
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        let destroy = || {
            let _current = self.shared.context.enter_relaxed()?;
            // SAFETY: `cuGraphDestroy` (cuda.h, "Graph Management"): ours, and destroyed once.
            unsafe { self.shared.driver().graph_destroy(self.raw) }
        };
        report(destroy());
    }
}

impl Drop for CudaExecutable {
    fn drop(&mut self) {
        let destroy = || {
            let _current = self.shared.context.enter_relaxed()?;
            // SAFETY: `cuGraphExecDestroy` (cuda.h, "Graph Management"): ours, and destroyed once;
            // replays in flight finish first.
            unsafe { self.shared.driver().graph_exec_destroy(self.raw) }
        };
        report(destroy());
        // After an update the driver may not know what replays in flight still use.
        if !self.former.is_empty()
            && let Some(last) = self.last.take()
        {
            let contents = std::mem::take(&mut self.contents);
            self.shared
                .garbage
                .push(Item::Hold(Box::new(contents)), Some(last));
        }
    }
}

fn report(result: Result<()>) {
    if let Err(error) = result {
        let expected = matches!(error.kind(), ErrorKind::Native { .. });
        tracing::debug!(%error, expected, "a graph could not be destroyed");
    }
}

#[cfg(test)]
mod tests {
    use super::plain_name;

    #[test]
    fn mangled_names_are_read() {
        let symbol = "_Z43ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f3221ncclSymkDevWorkArgs4K";
        let name = "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32";
        assert_eq!(plain_name(symbol), name);
        assert_eq!(plain_name("divide_f32"), "divide_f32");
        assert_eq!(plain_name("_Z99short"), "_Z99short");
        assert_eq!(plain_name("_Z"), "_Z");
    }
}
