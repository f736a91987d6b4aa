//! Nobody can take the memory out of a lease or a graph, to free what a captured graph uses.

use collectives_core::graph::Graph;
use collectives_core::memory::Memory;
use collectives_core::scratch::Lease;

fn out_of_a_lease(lease: Lease) -> Memory {
    lease.held
}

fn out_of_a_graph(graph: Graph) {
    let template = graph.0;
    drop(template);
}

fn main() {}
