//! Captures: streams whose work becomes nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_int};

use crate::graphs::{Contents, Node};
use crate::work::Task;
use crate::world::{Handle, INVALID_VALUE, Kind, Out, World, functions};

/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
pub(crate) const CAPTURING: c_int = 1;
/// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
const GLOBAL: c_int = 0;
/// `CUDA_ERROR_ILLEGAL_STATE`.
const ILLEGAL_STATE: c_int = 401;
/// `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED`, `..._UNJOINED` and `..._MERGE`.
const UNMATCHED: c_int = 903;
const UNJOINED: c_int = 904;
const MERGE: c_int = 902;
/// `CUDA_ERROR_CAPTURED_EVENT`.
const CAPTURED_EVENT: c_int = 907;

pub(crate) struct Capture {
    origin: Handle,
    pub(crate) graph: Handle,
    pub(crate) global: bool,
    /// Streams that are part of it, with how much was captured on each.
    parts: BTreeMap<Handle, u64>,
    /// Those among them whose work nothing comes after yet.
    open: BTreeSet<Handle>,
}

/// Where a stream stood in a capture when an event was recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fork {
    capture: u64,
    stream: Handle,
    length: u64,
}

impl World {
    fn capture(&mut self, capture: u64) -> Result<&mut Capture, c_int> {
        self.graphs.captures.get_mut(&capture).ok_or(UNMATCHED)
    }

    /// Where a stream of a capture stands.
    pub(crate) fn fork_of(&mut self, capture: u64, stream: Handle) -> Result<Fork, c_int> {
        let length = self.capture(capture)?.parts.get(&stream).copied();
        Ok(Fork {
            capture,
            stream,
            length: length.unwrap_or(0),
        })
    }

    /// Something more is captured on a stream.
    fn extend(&mut self, capture: u64, stream: Handle) -> Result<Handle, c_int> {
        let capture = self.capture(capture)?;
        *capture.parts.entry(stream).or_default() += 1;
        capture.open.insert(stream);
        Ok(capture.graph)
    }

    /// Has a stream wait for a point in a capture, of which it becomes a part.
    pub(crate) fn join(
        &mut self,
        fork: Fork,
        stream: Handle,
        of: Option<u64>,
    ) -> Result<(), c_int> {
        if of.is_some_and(|of| of != fork.capture) {
            return Err(MERGE);
        }
        let Some(capture) = self.graphs.captures.get_mut(&fork.capture) else {
            return Err(CAPTURED_EVENT);
        };
        if capture.parts.get(&fork.stream) == Some(&fork.length) && fork.stream != stream {
            capture.open.remove(&fork.stream);
        }
        self.extend(fork.capture, stream)?;
        if let Some(data) = self.streams.get_mut(&stream) {
            data.capture = Some(fork.capture);
        }
        Ok(())
    }

    /// Adds a node to the graph that is captured.
    pub(crate) fn add_node(
        &mut self,
        capture: u64,
        stream: Handle,
        task: Task,
        kernel: *const c_char,
    ) -> Result<(), c_int> {
        let graph = self.extend(capture, stream)?;
        let contents = self.graphs.contents(graph)?;
        contents.nodes.push(Node {
            kernel: kernel.addr(),
            task,
        });
        Ok(())
    }
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
        let (parts, open) = (BTreeMap::from([(stream, 0)]), BTreeSet::new());
        let capture = Capture { origin: stream, graph, global: mode == GLOBAL, parts, open };
        world.graphs.captures.insert(id, capture);
        if let Some(stream) = world.streams.get_mut(&stream) {
            stream.capture = Some(id);
        }
        Ok(())
    }
    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) |world| {
        world.check(stream, Kind::Stream)?;
        let id = world.capture_of(stream).ok_or(UNMATCHED)?;
        if world.capture(id)?.origin != stream {
            return Err(UNMATCHED);
        }
        let capture = world.graphs.captures.remove(&id).ok_or(UNMATCHED)?;
        for part in capture.parts.keys() {
            if let Some(part) = world.streams.get_mut(part) {
                part.capture = None;
            }
        }
        if capture.open.iter().any(|open| *open != stream) {
            graph.put(0);
            world.end_graph(capture.graph)?;
            return Err(UNJOINED);
        }
        graph.put(capture.graph);
        Ok(())
    }
    fn cuStreamGetCaptureInfo_v2(
        stream: Handle,
        status: Out<c_int>,
        id: Out<u64>,
        graph: Out<Handle>,
        _dependencies: Out<Handle>,
        _count: Out<usize>,
    ) |world| {
        world.check(stream, Kind::Stream)?;
        let capture = world.capture_of(stream);
        status.put(if capture.is_some() { CAPTURING } else { 0 });
        if let Some(capture) = capture {
            id.put(capture);
            // Nodes run in the order in which they were captured, so what they come after need not
            // be known.
            graph.put(world.capture(capture)?.graph);
        }
        Ok(())
    }
    fn cuStreamUpdateCaptureDependencies(stream: Handle, _nodes: Out<usize>, _count: usize, _flags: u32) |world| {
        world.check(stream, Kind::Stream)?;
        let capture = world.capture_of(stream).ok_or(INVALID_VALUE)?;
        world.extend(capture, stream).map(drop)
    }
}
