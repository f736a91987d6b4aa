//! The order of buffers: a use comes after the last use of each, on whatever stream that was.
#![forbid(unsafe_code)]

use collectives_core::buffer::Buffer;
use collectives_core::no_scratch::NoScratch;
use collectives_core::path::Staging;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::stream::Stream;

use crate::capability::Capability::Graphs;
use crate::case::{Case, Outcome};
use crate::planted::Planted;
use crate::rig::{Handle, Rig};

/// The cases. What reached the device without order is found at the end of each, as of every case.
pub const CASES: &[Case] = &[
    Case::new(
        "I59",
        "a call comes after the last use of each of its buffers",
        calls,
    )
    .catches(Planted::SecondOrderDropped),
    Case::new(
        "I59",
        "a group comes after the last use of every buffer in it",
        groups,
    )
    .catches(Planted::SecondOrderDropped),
    Case::new(
        "I59",
        "a launch comes after the last use of all that its graph owns",
        launches,
    )
    .needs(&[Graphs])
    .catches(Planted::SecondOrderDropped),
];

/// Elements of a buffer.
const COUNT: usize = 3000;

/// A handle with scratch, where there is symmetric memory.
fn handle(rig: &mut Rig<'_>) -> Outcome<Handle> {
    let comm = rig.communicator()?;
    Ok(match comm.capabilities().symmetric {
        Ok(()) => {
            let scratch = rig.pool("geometric", rig.options())?;
            rig.handle(comm, scratch)
        }
        Err(_) => rig.handle(comm, Box::new(NoScratch)),
    })
}

/// Buffers that were made in this order, and a stream for each of them that it was last used on.
struct Used {
    buffers: Vec<Buffer<f32>>,
    streams: Vec<Stream>,
}

impl Used {
    fn new(rig: &Rig<'_>, count: usize) -> Outcome<Self> {
        let mut used = Self {
            buffers: Vec::new(),
            streams: Vec::new(),
        };
        for _ in 0..count {
            used.buffers.push(rig.tensor(COUNT, 0)?);
            used.streams.push(rig.device().create_stream()?);
        }
        Ok(used)
    }

    /// Has each buffer written on its stream, with the input of a round, without the host waiting.
    fn refill(&mut self, rig: &Rig<'_>, round: usize) -> Outcome {
        let device = rig.device();
        let input = rig.tensor::<f32>(COUNT, round)?;
        for (buffer, stream) in self.buffers.iter_mut().zip(&self.streams) {
            Rig::duplicate(&*device, &input, buffer, stream)?;
        }
        Ok(())
    }

    /// The first two, in the order of their making or in the other one.
    fn pair(&mut self, swapped: bool) -> Option<(&Buffer<f32>, &mut Buffer<f32>)> {
        let [first, second, ..] = &mut self.buffers[..] else {
            return None;
        };
        Some(match swapped {
            false => (first, second),
            true => (second, first),
        })
    }
}

fn calls(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = handle(rig)?;
    let mut used = Used::new(rig, 2)?;
    for round in 0..8 {
        // Repeated, so that what a call remembers of the one before is tried too.
        let staging = if round < 4 {
            Staging::Auto
        } else {
            Staging::Never
        };
        handle.set_staging(staging);
        used.refill(rig, round)?;
        let stream = rig.stream();
        let Some((input, output)) = used.pair(round % 4 > 1) else {
            continue;
        };
        handle.all_reduce_into(input, output, ReduceOp::Sum, stream)?;
        rig.expect_sum("the output", output, round, stream)?;
    }
    rig.finish(handle)
}

fn groups(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = handle(rig)?;
    let (ranks, me) = (rig.ranks(), rig.rank());
    let (to, from) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    let mut used = Used::new(rig, 4)?;
    for round in 0..3 {
        used.refill(rig, round)?;
        let stream = rig.stream();
        if let [first, second, third, fourth] = &mut used.buffers[..] {
            handle.group(stream, |group| {
                group.send(&*fourth, Rank::new(to))?;
                group.recv(first, Rank::new(from))?;
                group.send(&*second, Rank::new(to))?;
                group.recv(third, Rank::new(from))?;
                Ok(())
            })?;
        }
        let theirs = crate::values::input::<f32>(from, ranks, COUNT, round);
        for received in [0, 2] {
            let received = &used.buffers[received];
            rig.expect_all("what was received", received, &theirs, stream)?;
        }
    }
    rig.finish(handle)
}

fn launches(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = handle(rig)?;
    handle.set_staging(Staging::Never);
    let mut used = Used::new(rig, 3)?;
    let device = rig.device();
    let (graph, ()) = rig.capture(|capture| {
        if let [first, second, third] = &mut used.buffers[..] {
            handle.all_reduce_into(&*third, first, ReduceOp::Sum, capture.stream())?;
            handle.all_reduce_into(&*third, second, ReduceOp::Sum, capture.stream())?;
        }
        Ok(())
    })?;
    let mut graph = graph.instantiate()?;
    for round in 0..3 {
        used.refill(rig, round)?;
        graph.launch(&*device, rig.stream())?;
        for output in &used.buffers[..2] {
            rig.expect_sum("an output", output, round, rig.stream())?;
        }
    }
    drop(graph);
    rig.finish(handle)
}
