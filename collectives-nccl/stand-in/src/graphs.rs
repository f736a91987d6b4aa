//! Graphs and their executables.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use crate::captures::Capture;
use crate::devices::current;
use crate::owned::Objects;
use crate::work::{Mark, Step, Task};
use crate::world::{Handle, INVALID_HANDLE, Kind, Out, World, functions};

/// `CU_GRAPH_NODE_TYPE_KERNEL`, and the type that all other nodes are given.
const KERNEL_NODE: c_int = 0;
const OTHER_NODE: c_int = 7;
/// The name of what is no kernel.
pub(crate) const EVENT: *const c_char = std::ptr::null();
/// `CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE`.
const UPDATE_FAILURE: c_int = 910;

/// What is being captured, and what was.
#[derive(Default)]
pub(crate) struct Graphs {
    pub(crate) next: u64,
    pub(crate) captures: BTreeMap<u64, Capture>,
    pub(crate) graphs: BTreeMap<Handle, Contents>,
    pub(crate) objects: Objects,
    executables: BTreeMap<Handle, Executable>,
}

/// Of a graph or an executable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    pub(crate) nodes: Vec<Node>,
    pub(crate) owned: Vec<Handle>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The address of a kernel's name; zero for other nodes.
    pub(crate) kernel: usize,
    pub(crate) task: Task,
}

struct Executable {
    contents: Contents,
    /// Behind the launches, which run one after another.
    mark: Arc<Mark>,
    running: usize,
    destroyed: bool,
}

impl Graphs {
    pub(crate) fn has_global_capture(&self) -> bool {
        self.captures.values().any(|capture| capture.global)
    }

    pub(crate) fn contents(&mut self, graph: Handle) -> Result<&mut Contents, c_int> {
        self.graphs.get_mut(&graph).ok_or(INVALID_HANDLE)
    }
}

impl Task {
    /// Whether it has a call on this communicator.
    fn uses(&self, comm: Handle) -> bool {
        match self {
            Self::Calls(calls) => calls.iter().any(|call| call.comm == comm),
            Self::All(tasks) => tasks.iter().any(|task| task.uses(comm)),
            _ => false,
        }
    }

    /// What an executable cannot be updated from and to: the kind, and a child's.
    fn shape(&self) -> String {
        match self {
            Self::Local(_) => "local".to_owned(),
            Self::Record(_) | Self::Wait(_) => "event".to_owned(),
            Self::Calls(_) => "calls".to_owned(),
            Self::All(tasks) => format!("{:?}", tasks.iter().map(Self::shape).collect::<Vec<_>>()),
        }
    }

    /// An event that was destroyed.
    fn dead_event(&self, world: &World) -> Option<Handle> {
        match self {
            Self::Record(event) | Self::Wait(event) => {
                (world.live.get(&event.handle) != Some(&Kind::Event)).then_some(event.handle)
            }
            Self::All(tasks) => tasks.iter().find_map(|task| task.dead_event(world)),
            _ => None,
        }
    }
}

impl Contents {
    fn shape(&self) -> Vec<(bool, String)> {
        let nodes = self.nodes.iter();
        nodes
            .map(|node| (node.kernel != 0, node.task.shape()))
            .collect()
    }
}

impl World {
    /// A copy, which owns what the original does.
    fn copy(&mut self, graph: Handle) -> Result<Contents, c_int> {
        let contents = self.graphs.contents(graph)?.clone();
        self.graphs.objects.share(&contents.owned);
        Ok(contents)
    }

    /// Ends a graph, and what nobody owns any more.
    pub(crate) fn end_graph(&mut self, graph: Handle) -> Result<(), c_int> {
        self.end(graph, Kind::Graph)?;
        let contents = self.graphs.graphs.remove(&graph).unwrap_or_default();
        self.disown(&contents.owned);
        Ok(())
    }

    /// A launch is over; an executable that was destroyed meanwhile gives up what it owns.
    pub(crate) fn launched(&mut self, executable: Handle) {
        if let Some(executable) = self.graphs.executables.get_mut(&executable) {
            executable.running -= 1;
        }
        self.settle_executable(executable);
    }

    fn settle_executable(&mut self, handle: Handle) {
        let executables = &mut self.graphs.executables;
        let over = |executable: &Executable| executable.destroyed && executable.running == 0;
        if executables.get(&handle).is_some_and(over)
            && let Some(executable) = executables.remove(&handle)
        {
            self.disown(&executable.contents.owned);
        }
    }

    fn executable(&mut self, handle: Handle) -> Result<&mut Executable, c_int> {
        self.check(handle, Kind::Executable)?;
        self.graphs
            .executables
            .get_mut(&handle)
            .ok_or(INVALID_HANDLE)
    }

    /// Whether a graph or an executable has a call on this communicator.
    pub(crate) fn is_captured(&self, comm: Handle) -> bool {
        let executables = self.graphs.executables.values();
        let mut all = self
            .graphs
            .graphs
            .values()
            .chain(executables.map(|one| &one.contents));
        all.any(|contents| contents.nodes.iter().any(|node| node.task.uses(comm)))
    }
}

functions! {
    fn cuGraphClone(clone: Out<Handle>, graph: Handle) |world| {
        world.check(graph, Kind::Graph)?;
        let contents = world.copy(graph)?;
        let made = world.make(Kind::Graph);
        world.graphs.graphs.insert(made, contents);
        clone.put(made);
        Ok(())
    }
    fn cuGraphDestroy(graph: Handle) |world| {
        world.end_graph(graph)
    }
    fn cuGraphAddChildGraphNode(node: Out<usize>, graph: Handle, _after: Out<usize>, _count: usize, child: Handle) |world| {
        world.check(graph, Kind::Graph)?;
        world.check(child, Kind::Graph)?;
        let child = world.copy(child)?;
        let tasks = child.nodes.into_iter().map(|node| node.task).collect();
        let contents = world.graphs.contents(graph)?;
        contents.nodes.push(Node { kernel: 0, task: Task::All(tasks) });
        contents.owned.extend(child.owned);
        node.put(0);
        Ok(())
    }
    fn cuGraphGetNodes(graph: Handle, nodes: Out<usize>, count: Out<usize>) |world| {
        world.check(graph, Kind::Graph)?;
        let found = &world.graphs.contents(graph)?.nodes;
        if !nodes.is_null() {
            found.iter().enumerate().for_each(|(index, node)| nodes.at(index).put(node.kernel));
        }
        count.put(found.len());
        Ok(())
    }
    fn cuGraphNodeGetType(node: usize, kind: Out<c_int>) |_world| {
        kind.put(if node == 0 { OTHER_NODE } else { KERNEL_NODE });
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
        let contents = world.copy(graph)?;
        let made = world.make(Kind::Executable);
        let (mark, running, destroyed) = (Arc::default(), 0, false);
        world.graphs.executables.insert(made, Executable { contents, mark, running, destroyed });
        executable.put(made);
        Ok(())
    }
    fn cuGraphExecUpdate_v2(executable: Handle, graph: Handle, _info: *mut c_void) |world| {
        world.check(graph, Kind::Graph)?;
        let shape = world.graphs.contents(graph)?.shape();
        if world.executable(executable)?.contents.shape() != shape {
            return Err(UPDATE_FAILURE);
        }
        let contents = world.copy(graph)?;
        let updated = &mut world.executable(executable)?.contents;
        updated.nodes = contents.nodes;
        // What it owned before it keeps until it is destroyed.
        updated.owned.extend(contents.owned);
        Ok(())
    }
    fn cuGraphExecDestroy(executable: Handle) |world| {
        world.executable(executable)?.destroyed = true;
        world.end(executable, Kind::Executable)?;
        world.settle_executable(executable);
        Ok(())
    }
    fn cuGraphLaunch(executable: Handle, stream: Handle) |world| {
        current()?;
        world.check(stream, Kind::Stream)?;
        let launched = world.executable(executable)?;
        launched.running += 1;
        let (mark, nodes) = (Arc::clone(&launched.mark), launched.contents.nodes.clone());
        world.push(stream, Step::Wait(Arc::clone(&mark), mark.recorded()));
        for node in nodes {
            if let Some(event) = node.task.dead_event(world) {
                world.wrong.push(format!("a graph uses {event:#x}, which is no event any more"));
            }
            world.enqueue(stream, node.task);
        }
        let number = mark.record();
        world.push(stream, Step::Record(mark, number));
        world.push(stream, Step::Launched(executable));
        world.enqueued();
        Ok(())
    }
}
