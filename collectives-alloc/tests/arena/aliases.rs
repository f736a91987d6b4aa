//! Generations are the same bytes: order, claims and addresses.

use std::sync::Arc;
use std::time::Duration;

use collectives_core::buffer::Buffer;
use collectives_core::communicator::Communicator;
use collectives_core::error::Misuse;
use collectives_core::graph::Capture;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use collectives_host::model::{AddressOrder, DeviceModel};
use collectives_host::world::HostWorld;
use rstest::rstest;

use crate::pages::pages;
use crate::{DEADLINE, GRANULE, Rig, arena};

fn hostile(mode: StreamMode) -> impl Fn(Rank) -> DeviceModel + Sync {
    move |rank| {
        DeviceModel::new()
            .with_granule(GRANULE)
            .with_address_order(AddressOrder::Shuffled(u64::from(rank.0)))
            .with_guard(4096)
            .with_poison(0xdb)
            .with_destructor_delay(Duration::from_millis(u64::from(rank.0)))
            .with_skew(Duration::from_micros(100), u64::from(rank.0))
            .with_stream_mode(mode)
    }
}

// invariants 22, 51, 52 and 53
#[rstest]
#[case::default(1.125)]
#[case::none(1.0)]
fn graphs_of_every_generation_replay_exactly_after_twenty_growths(
    #[case] growth: f64,
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    HostWorld::new(3)
        .model(hostile(mode))
        .deadline(DEADLINE)
        .run(|comm| {
            let mut config = arena();
            config.growth = Some(growth);
            let mut rig = Rig::new(comm, &config);
            let other = rig.device.create_stream().unwrap();
            let mut graphs = Vec::new();
            let mut addresses = Vec::new();
            let mut largest = 4096;
            for generation in 0..20 {
                rig.eager(largest, generation);
                let newest = rig.slots().last().copied().unwrap();
                assert_eq!(newest.generation, generation as u64 + 1, "one growth each");
                addresses.push(newest.capacity);
                let granules = |bytes: f64| {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "small and positive"
                    )]
                    let bytes = bytes.ceil() as usize;
                    bytes.next_multiple_of(GRANULE)
                };
                #[expect(clippy::cast_precision_loss, reason = "small")]
                let bound = granules(growth * largest as f64) + GRANULE;
                assert!(rig.mapped() <= bound, "{} > {bound}", rig.mapped());
                if generation % 5 < 2 {
                    graphs.push(rig.capture(largest));
                }
                for (index, graph) in graphs.iter_mut().enumerate() {
                    rig.replay(graph, generation + index, &other);
                    rig.eager(4096, index);
                    rig.replay(graph, generation + index + 1, &rig.stream);
                }
                largest = newest.capacity + 1000;
            }
            let report = rig.host.memory_report();
            let stats = rig.collectives.stats();
            assert_eq!(report.mapped_bytes, stats.mapped_bytes());
            assert_eq!(report.address_bytes, stats.address_bytes());
            assert!(report.address_bytes > 3 * report.mapped_bytes);
            let (length, used) = pages(rig.device.id());
            assert_eq!(length, report.mapped_bytes);
            assert!(used <= length);
            // Eight generations that graphs own, the newest, and the one that it maps again.
            assert_eq!(stats.slots.len(), 10);
            assert_eq!(stats.slots.iter().filter(|slot| slot.claimed).count(), 8);
            rig.host.check_memory().unwrap();
            drop(graphs);
            let _ = rig.collectives.close().unwrap();
            rig.host.wait_for_destructors();
            rig.device.collect();
            rig.host.check_memory().unwrap();
            assert_eq!(rig.host.mapped_bytes(), 0);
        });
}

#[test]
// invariants 26 and 27
fn a_replay_on_an_old_generation_and_a_lease_of_the_newest_exclude_each_other() {
    let model = |_| DeviceModel::new().with_granule(GRANULE);
    HostWorld::new(1).model(model).run(|mut comm| {
        let mut scratch = arena().build().unwrap();
        let device = Arc::clone(comm.device());
        let mut stream = device.create_stream().unwrap();
        scratch
            .acquire(&mut comm, Request::new(100), &stream, None)
            .unwrap()
            .complete()
            .unwrap();
        let capture = Capture::begin(&*device, &mut stream).unwrap();
        let id = Some(capture.id());
        let lease = scratch
            .acquire(&mut comm, Request::new(100), capture.stream(), id)
            .unwrap();
        lease.complete().unwrap();
        let mut graph = capture.end().unwrap().instantiate().unwrap();
        let before = scratch.stats();
        let lease = scratch
            .acquire(&mut comm, Request::new(3 * GRANULE), &stream, None)
            .unwrap();
        assert_eq!(lease.slot().0, 2, "another generation than the graph's");
        let refused = graph.launch(&*device, &stream).unwrap_err();
        assert_eq!(refused.misuse(), Some(&Misuse::InUse));
        lease.complete().unwrap();
        graph.launch(&*device, &stream).unwrap();
        let after = scratch.stats();
        assert_eq!(
            after.fences,
            before.fences + 1,
            "the newest waits for replays on the oldest"
        );
        device.synchronize(&stream).unwrap();
        drop(graph);
        let _ = scratch.close(&mut comm).unwrap();
    });
}

#[test]
fn eager_calls_on_many_streams_and_replays_of_old_generations_share_the_bytes_in_turns() {
    HostWorld::new(2)
        .model(hostile(Asynchronous))
        .deadline(DEADLINE)
        .run(|comm| {
            let mut rig = Rig::new(comm, &arena());
            let streams: Vec<_> = (0..3)
                .map(|_| rig.device.create_stream().unwrap())
                .collect();
            let mut graphs = Vec::new();
            for bytes in [4096, 3 * GRANULE, 5 * GRANULE] {
                rig.eager(bytes, 0);
                graphs.push(rig.capture(bytes));
            }
            rig.eager(7 * GRANULE, 0);
            for round in 0..40 {
                // Nothing is waited for between the calls.
                let mut eager = Vec::new();
                for (index, stream) in streams.iter().enumerate() {
                    let count = (4096 << index) / 4;
                    let input = rig.input(count, round + index);
                    let mut tensor = Buffer::from_slice(&rig.device, &input, stream).unwrap();
                    let graph = &mut graphs[(round + index) % 3];
                    let input = rig.input(graph.tensor.len(), round);
                    graph.tensor.write(&input, stream).unwrap();
                    graph.graph.launch(&*rig.device, stream).unwrap();
                    let _ = rig
                        .collectives
                        .all_reduce(&mut tensor, ReduceOp::Sum, stream)
                        .unwrap();
                    eager.push((tensor, round + index));
                }
                for (tensor, round) in &eager {
                    let found = tensor.read(&rig.stream).unwrap();
                    assert_eq!(rig.wrong(&found, *round), 0);
                }
                for graph in &graphs {
                    let found = graph.tensor.read(&rig.stream).unwrap();
                    assert_eq!(rig.wrong(&found, round), 0);
                }
            }
            rig.host.check_memory().unwrap();
        });
}
