//! Captures, graphs, and what graphs own.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::streams::current;
use crate::world::{DESTROYS, Handle, INVALID_HANDLE, INVALID_VALUE, Kind, Out, World, functions};

/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
pub(crate) const CAPTURING: c_int = 1;
/// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
const GLOBAL: c_int = 0;
/// `CU_GRAPH_NODE_TYPE_KERNEL` and `CU_GRAPH_NODE_TYPE_EVENT_RECORD`.
const KERNEL_NODE: c_int = 0;
const EVENT_NODE: c_int = 7;
/// A node that is no kernel.
pub(crate) const STREAM_CAPTURES: *const c_char = std::ptr::null();
/// `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED` and `CUDA_ERROR_ILLEGAL_STATE`.
const UNMATCHED: c_int = 903;
const ILLEGAL_STATE: c_int = 401;

/// What is being captured, and what was.
#[derive(Default)]
pub(crate) struct Graphs {
    next: u64,
    captures: BTreeMap<u64, Capture>,
    graphs: BTreeMap<Handle, Contents>,
    objects: BTreeMap<Handle, Object>,
}

struct Capture {
    origin: Handle,
    graph: Handle,
    global: bool,
}

/// Of a graph or an executable.
#[derive(Clone, Default)]
struct Contents {
    /// Names of kernels as addresses; zero for other nodes.
    nodes: Vec<usize>,
    owned: Vec<Handle>,
}

/// A user object.
struct Object {
    pointer: usize,
    destroy: extern "C" fn(*mut c_void),
    owners: usize,
}

impl Graphs {
    pub(crate) fn has_global_capture(&self) -> bool {
        self.captures.values().any(|capture| capture.global)
    }

    /// The graph that a capture makes.
    pub(crate) fn capturing(&self, capture: u64) -> Option<Handle> {
        self.captures.get(&capture).map(|capture| capture.graph)
    }

    fn contents(&mut self, graph: Handle) -> Result<&mut Contents, c_int> {
        self.graphs.get_mut(&graph).ok_or(INVALID_HANDLE)
    }
}

impl World {
    /// Adds a node to the graph that a stream captures; a kernel by its name.
    pub(crate) fn add_node(&mut self, stream: Handle, kernel: *const c_char) -> Result<(), c_int> {
        let Some(capture) = self.capture_of(stream) else {
            return Ok(());
        };
        let graph = self.graphs.capturing(capture).ok_or(INVALID_VALUE)?;
        self.graphs.contents(graph)?.nodes.push(kernel.addr());
        Ok(())
    }

    /// Another graph or executable of the same contents.
    fn copy(&mut self, graph: Handle, kind: Kind) -> Result<Handle, c_int> {
        let contents = self.graphs.contents(graph)?.clone();
        for object in &contents.owned {
            if let Some(object) = self.graphs.objects.get_mut(object) {
                object.owners += 1;
            }
        }
        let copy = self.make(kind);
        self.graphs.graphs.insert(copy, contents);
        Ok(copy)
    }

    /// Ends a graph or an executable, and what nobody owns any more.
    fn end_graph(&mut self, graph: Handle, kind: Kind) -> Result<(), c_int> {
        self.end(graph, kind)?;
        let contents = self.graphs.graphs.remove(&graph).unwrap_or_default();
        self.disown(&contents.owned);
        Ok(())
    }

    fn disown(&mut self, objects: &[Handle]) {
        for &handle in objects {
            let Some(object) = self.graphs.objects.get_mut(&handle) else {
                continue;
            };
            object.owners -= 1;
            if object.owners == 0 {
                let (destroy, pointer) = (object.destroy, object.pointer);
                self.graphs.objects.remove(&handle);
                self.live.remove(&handle);
                if let Err(error) = destroy_elsewhere(destroy, pointer) {
                    self.wrong
                        .push(format!("no thread for a destructor: {error}"));
                }
            }
        }
    }
}

/// Destructors that have not finished.
pub(crate) static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Runs a destructor on another thread, which may call nothing here; not waited for, as the caller
/// holds the world.
fn destroy_elsewhere(destroy: extern "C" fn(*mut c_void), pointer: usize) -> std::io::Result<()> {
    let named = thread::Builder::new().name("destructor".to_owned());
    RUNNING.fetch_add(1, Ordering::AcqRel);
    named.spawn(move || {
        DESTROYS.set(true);
        destroy(std::ptr::with_exposed_provenance_mut(pointer));
        RUNNING.fetch_sub(1, Ordering::AcqRel);
    })?;
    Ok(())
}

functions! {
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) |world| {
        world.check(stream, Kind::Stream)?;
        if world.capture_of(stream).is_some() {
            return Err(ILLEGAL_STATE);
        }
        let graph = world.make(Kind::Graph);
        world.graphs.next += 1;
        let id = world.graphs.next;
        world.graphs.graphs.insert(graph, Contents::default());
        let capture = Capture { origin: stream, graph, global: mode == GLOBAL };
        world.graphs.captures.insert(id, capture);
        if let Some(stream) = world.streams.get_mut(&stream) {
            stream.capture = Some(id);
        }
        Ok(())
    }
    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) |world| {
        world.check(stream, Kind::Stream)?;
        let id = world.capture_of(stream).ok_or(UNMATCHED)?;
        let capture = world.graphs.captures.remove(&id).ok_or(UNMATCHED)?;
        if capture.origin != stream {
            return Err(UNMATCHED);
        }
        for stream in world.streams.values_mut() {
            stream.capture.take_if(|capture| *capture == id);
        }
        graph.put(capture.graph);
        Ok(())
    }
    fn cuUserObjectCreate(
        object: Out<Handle>,
        pointer: *mut c_void,
        destroy: extern "C" fn(*mut c_void),
        count: c_uint,
        _flags: c_uint,
    ) |world| {
        let handle = world.make(Kind::UserObject);
        let pointer = pointer.expose_provenance();
        let owners = count as usize;
        world.graphs.objects.insert(handle, Object { pointer, destroy, owners });
        object.put(handle);
        Ok(())
    }
    fn cuUserObjectRelease(object: Handle, _count: c_uint) |world| {
        world.check(object, Kind::UserObject)?;
        world.disown(&[object]);
        Ok(())
    }
    fn cuGraphRetainUserObject(graph: Handle, object: Handle, _count: c_uint, _flags: c_uint) |world| {
        world.check(graph, Kind::Graph)?;
        world.check(object, Kind::UserObject)?;
        // The caller's reference moves.
        world.graphs.contents(graph)?.owned.push(object);
        Ok(())
    }
    fn cuGraphClone(clone: Out<Handle>, graph: Handle) |world| {
        world.check(graph, Kind::Graph)?;
        clone.put(world.copy(graph, Kind::Graph)?);
        Ok(())
    }
    fn cuGraphDestroy(graph: Handle) |world| {
        world.end_graph(graph, Kind::Graph)
    }
    fn cuGraphGetNodes(graph: Handle, nodes: Out<usize>, count: Out<usize>) |world| {
        world.check(graph, Kind::Graph)?;
        let found = world.graphs.contents(graph)?.nodes.clone();
        if !nodes.is_null() {
            found.iter().enumerate().for_each(|(index, node)| nodes.at(index).put(*node));
        }
        count.put(found.len());
        Ok(())
    }
    fn cuGraphNodeGetType(node: usize, kind: Out<c_int>) |_world| {
        kind.put(if node == 0 { EVENT_NODE } else { KERNEL_NODE });
        Ok(())
    }
    fn cuGraphKernelNodeGetParams_v2(node: usize, parameters: Out<usize>) |_world| {
        // The function comes first, and functions are their names.
        parameters.put(node);
        Ok(())
    }
    fn cuGraphInstantiateWithFlags(executable: Out<Handle>, graph: Handle, _flags: u64) |world| {
        current()?;
        world.check(graph, Kind::Graph)?;
        executable.put(world.copy(graph, Kind::Executable)?);
        Ok(())
    }
    fn cuGraphExecUpdate_v2(executable: Handle, graph: Handle, _info: *mut c_void) |world| {
        world.check(executable, Kind::Executable)?;
        world.check(graph, Kind::Graph)
    }
    fn cuGraphExecDestroy(executable: Handle) |world| {
        world.end_graph(executable, Kind::Executable)
    }
    fn cuGraphLaunch(executable: Handle, stream: Handle) |world| {
        current()?;
        world.check(executable, Kind::Executable)?;
        world.check(stream, Kind::Stream)
    }
}
