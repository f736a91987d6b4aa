//! Graphs as nodes of other graphs.

use std::any::Any;
use std::sync::Arc;

use collectives_core::error::{CaptureFault, Error, Misuse, Result};
use collectives_core::graph::{ChildGraphs, GraphTemplate};
use collectives_core::stream::StreamRef;

use super::CudaDevice;
use super::graph::CudaGraph;
use super::stream::stream_of;
use crate::driver::{DEPENDENCIES_SET, RawNode};

// SAFETY: The driver clones a child into its parent, with what the child owns (CUDA programming guide,
// "User Objects"); besides, the parent is given objects of its own for the child's memory and
// communicators, and these are among what it tells to own.
unsafe impl ChildGraphs for CudaDevice {
    unsafe fn embed(&self, stream: &StreamRef, child: &dyn GraphTemplate) -> Result<()> {
        let shared = &self.shared;
        let any: &dyn Any = child;
        let child = match any.downcast_ref::<CudaGraph>() {
            Some(graph) if Arc::ptr_eq(&graph.shared, shared) => graph,
            _ => return Err(Misuse::WrongDevice { what: "the graph" }.into()),
        };
        let cuda = stream_of(shared.id, stream)?;
        let _current = shared.context.enter()?;
        let not_capturing = || Error::capture(CaptureFault::NotCapturing);
        let (capturing, after) = cuda.capturing_after()?.ok_or_else(not_capturing)?;
        let (driver, captures) = (shared.driver(), &shared.captures);
        for memory in &child.contents.memories {
            captures.own(driver, capturing, memory.clone())?;
        }
        captures.adopt(capturing.id, &child.contents);
        let mut node = RawNode::NULL;
        // SAFETY: `cuGraphAddChildGraphNode` (cuda.h, "Graph Management"): the graph is the one that
        // the stream captures into, the nodes are of it, and the child is valid and is cloned.
        unsafe {
            driver.graph_add_child(
                &raw mut node,
                capturing.graph,
                after.as_ptr(),
                after.len(),
                child.raw,
            )
        }?;
        // SAFETY: `cuStreamUpdateCaptureDependencies` (cuda.h, "Stream Management"): the stream
        // captures into the graph of this node, and nobody else uses it, by the caller.
        unsafe { driver.stream_update_dependencies(cuda.raw, &raw mut node, 1, DEPENDENCIES_SET) }
    }
}
