//! A captured graph keeps its scratch while the pool grows around it.
//!
//! The policy `replace` gives up its slot whenever it grows. Here a graph captured that slot, so
//! the slot stays until the graph is gone, and only then are its bytes given back.
#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::Arc;

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::error::Result;
use collectives_core::graph::Capture;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;
use collectives_host::communicator::HostCommunicator;
use collectives_host::world::HostWorld;

const MIB: usize = 1 << 20;

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let lines = HostWorld::new(2).run(rank_main);
    // Every rank says the same, so one is enough.
    for (rank, lines) in lines.into_iter().enumerate() {
        let lines = lines?;
        if rank == 0 {
            println!("{}", lines.join("\n"));
        }
    }
    Ok(())
}

fn rank_main(comm: HostCommunicator) -> Result<Vec<String>> {
    let scratch = ScratchConfig::with_policy("replace").build()?;
    let mut collectives = Collectives::new(comm, scratch);
    let device = Arc::clone(collectives.device());
    let mut stream = device.create_stream()?;
    let mut lines = Vec::new();

    // What a capture needs is reserved before it: nothing can be registered while capturing.
    let plan = collectives.reserve(&[Request::new(MIB)])?;
    lines.push(format!("reserved {} MiB", plan.mapped_bytes / MIB));

    let mut tensor = Buffer::from_slice(&device, &vec![0_u32; MIB / 4], &stream)?;
    let capture = Capture::begin(&*device, &mut stream)?;
    collectives.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
    let mut graph = capture.end()?.instantiate()?;

    // A larger call makes the policy replace its slot; the graph's stays.
    let mut larger = Buffer::from_slice(&device, &vec![1_u32; MIB], &stream)?;
    collectives.all_reduce(&mut larger, ReduceOp::Sum, &stream)?;
    lines.push(kept("after growth", &collectives.stats()));

    for round in 1..=3 {
        tensor.write(&vec![round; MIB / 4], &stream)?;
        graph.launch(&*device, &stream)?;
        let sum = tensor.read(&stream)?;
        lines.push(format!("replay {round}: every element is {}", sum[0]));
        assert!(sum.iter().all(|&element| element == 2 * round));
    }

    drop(graph);
    // The destructor runs on a thread of the device; wait for it as a framework's idle time would.
    while collectives.trim()?.held_bytes > 0 {
        std::thread::yield_now();
    }
    lines.push(kept("after the graph is gone", &collectives.stats()));
    let _deferred = collectives.close()?;
    Ok(lines)
}

fn kept(when: &str, stats: &collectives_core::stats::Stats) -> String {
    format!(
        "{when}: {} MiB kept in {} slots, {} MiB of them owned by graphs",
        stats.mapped_bytes() / MIB,
        stats.slots.len(),
        stats.claimed_bytes() / MIB
    )
}
