//! The pool under real collectives, captures and replays, on the host backend.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod rig;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use collectives_alloc::config::ScratchConfig;
use collectives_alloc::recorded::Recorded;
use collectives_alloc::registry;
use collectives_alloc::replay::Replay;
use collectives_alloc::trace;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::error::ErrorKind;
use collectives_core::graph::Capture;
use collectives_core::path::Staging;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;
use collectives_host::communicator::HostCommunicator;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use collectives_host::model::{AddressOrder, Call as HostCall, DeviceModel};
use collectives_host::world::HostWorld;
use rstest::rstest;

use rig::{Captured, DEADLINE, Rig};

/// So small that the bytes which are moved do not make the tests slow.
const GRANULE: usize = 64 << 10;
const HALF: usize = GRANULE / 2;
/// How much smaller it is than the granule of a GPU.
const SCALE: usize = (2 << 20) / GRANULE;

fn rig(comm: HostCommunicator, policy: &str) -> Rig {
    Rig::new(comm, &ScratchConfig::with_policy(policy))
}

/// A graph of three reductions, whose slot exists before.
fn capture(on: &mut Rig, bytes: usize) -> Captured {
    let _ = on.collectives.reserve(&[Request::new(bytes)]).unwrap();
    on.capture_of(bytes, &[ReduceOp::Max, ReduceOp::Max, ReduceOp::Sum])
}

fn model() -> DeviceModel {
    DeviceModel::new().with_granule(GRANULE)
}

/// Ranks that differ in whatever ranks may differ in, on memory that finds stale uses.
fn hostile(mode: StreamMode) -> impl Fn(Rank) -> DeviceModel + Sync {
    move |rank| hostile_rank(rank).with_stream_mode(mode)
}

fn hostile_rank(rank: Rank) -> DeviceModel {
    let order = if rank.0.is_multiple_of(2) {
        AddressOrder::Descending
    } else {
        AddressOrder::Shuffled(u64::from(rank.0))
    };
    model()
        .with_address_order(order)
        .with_guard(4096)
        .with_poison(0xdb)
        .with_quarantine(64 << 20)
        .with_destructor_delay(Duration::from_millis(u64::from(rank.0)))
        .with_budget((256 << 20) + rank.index() * GRANULE)
        .with_skew(Duration::from_micros(100), u64::from(rank.0))
}

// invariants 21, 22 and 26
#[rstest]
fn old_graphs_replay_exactly_after_any_growth_on_any_stream(
    #[values("exact", "replace", "geometric", "geometric-class", "arena")] name: &str,
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    HostWorld::new(3)
        .model(hostile(mode))
        .deadline(DEADLINE)
        .run(|comm| {
            let mut on = rig(comm, name);
            let other = on.device.create_stream().unwrap();
            let mut graphs: Vec<_> = [128, 2 << 10].map(|bytes| capture(&mut on, bytes)).into();
            for (round, bytes) in [HALF, 3 * HALF, 5 * HALF, 9 * HALF].into_iter().enumerate() {
                on.eager(bytes, 0);
                for graph in &mut graphs {
                    on.replay(graph, 2 * round, &on.stream);
                    on.replay(graph, 2 * round + 1, &other);
                }
            }
            on.host.check_memory().unwrap();
            drop(graphs);
            let _ = on.collectives.close().unwrap();
            on.host.wait_for_destructors();
            on.device.collect();
            on.host.check_memory().unwrap();
            assert_eq!(on.host.mapped_bytes(), 0);
        });
}

// invariants 9 and 38
#[rstest]
fn bytes_come_back_at_the_first_collective_point_after_the_last_rank_let_its_graph_go(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    HostWorld::new(4)
        .model(hostile(mode))
        .deadline(DEADLINE)
        .run(|comm| {
            let mut on = rig(comm, "replace");
            let mut first = Some(capture(&mut on, HALF));
            let mut second = Some(capture(&mut on, 3 * HALF));
            on.eager(9 * HALF, 0);
            assert_eq!(on.host.mapped_bytes(), GRANULE + 2 * GRANULE + 10 * HALF);
            assert_eq!(on.host.mapped_bytes(), on.mapped());
            // Ranks let their graphs go in another order.
            let (early, late) = if on.rank.is_multiple_of(2) {
                (&mut first, &mut second)
            } else {
                (&mut second, &mut first)
            };
            *early = None;
            on.host.wait_for_destructors();
            on.eager(11 * HALF, 0);
            let mapped = on.mapped();
            assert_eq!(mapped, 3 * GRANULE + 10 * GRANULE, "some rank holds either");
            *late = None;
            on.host.wait_for_destructors();
            let trimmed = on.collectives.trim().unwrap();
            assert_eq!((trimmed.slots, trimmed.held_bytes), (3, 0));
            assert_eq!(on.host.mapped_bytes(), 0);
            on.eager(HALF, 0);
        });
}

// invariants 8 and 10
#[rstest]
#[case::exact("exact", (51_118_080, 62_914_560, 12))]
#[case::geometric_class("geometric-class", (15_728_640, 16_777_216, 4))]
#[case::geometric("geometric", (14_680_064, 14_680_064, 3))]
#[case::replace("replace", (14_680_064, 14_680_064, 3))]
fn the_seed_trace_comes_to_its_table(
    #[case] name: &str,
    #[case] expected: (usize, usize, u64),
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let figures = HostWorld::new(4)
        .model(move |_| model().with_stream_mode(mode))
        .deadline(DEADLINE)
        .run(|comm| {
            let mut on = rig(comm, name);
            let padded = |tokens: usize| tokens.next_multiple_of(64) * 10_240 / SCALE;
            let mut graphs: Vec<_> = [1, 8, 64, 128, 256]
                .map(|batch| capture(&mut on, padded(batch)))
                .into();
            let prompts = [
                37, 64, 101, 150, 192, 230, 300, 350, 410, 480, 505, 570, 640, 655, 700, 768,
            ];
            for prompt in prompts.into_iter().chain(prompts) {
                on.eager(padded(prompt), 0);
            }
            for graph in &mut graphs {
                on.replay(graph, 0, &on.stream);
            }
            let stats = on.collectives.stats();
            assert_eq!(stats.mapped_bytes(), on.host.mapped_bytes());
            (
                stats.capacity_bytes() * SCALE,
                stats.mapped_bytes() * SCALE,
                stats.registrations,
            )
        });
    assert_eq!(figures, [expected; 4]);
}

// invariant 35
#[rstest]
fn a_device_out_of_memory_on_any_rank_fails_alike_everywhere_and_smaller_works(
    #[values(0, 1, 2)] poor: u32,
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let model = move |rank: Rank| {
        let model = model().with_stream_mode(mode);
        match rank.0 == poor {
            true => model.with_budget(9 * GRANULE),
            false => model,
        }
    };
    let kinds = HostWorld::new(3)
        .model(model)
        .deadline(DEADLINE)
        .run(|comm| {
            let mut on = rig(comm, "geometric");
            let request = [Request::new(10 * GRANULE)];
            let failed = on.collectives.reserve(&request).unwrap_err().kind().clone();
            on.eager(GRANULE, 0);
            assert_eq!(on.host.mapped_bytes(), GRANULE);
            failed
        });
    assert!(kinds.iter().all(|kind| *kind == kinds[0]), "{kinds:?}");
    let ErrorKind::OutOfMemory { rank, .. } = kinds[0] else {
        panic!("{:?}", kinds[0]);
    };
    assert_eq!(rank, Rank(poor));
}

// invariant 35
#[rstest]
fn what_one_rank_is_refused_once_fails_alike_everywhere_and_then_works(
    #[values(0, 1, 2)] poor: u32,
    #[values(HostCall::AllocateSymmetric, HostCall::Fence, HostCall::Register)] call: HostCall,
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let model = move |rank: Rank| {
        let model = model().with_stream_mode(mode);
        match rank.0 == poor {
            true => model.with_refusal(call, 1),
            false => model,
        }
    };
    let world = HostWorld::new(3).model(model).deadline(DEADLINE);
    let kinds = world.run(|comm| {
        let mut on = rig(comm, "geometric");
        let request = [Request::new(GRANULE)];
        let error = on.collectives.reserve(&request).unwrap_err();
        assert!(!error.poisons(), "{error}");
        assert_eq!(on.host.mapped_bytes(), 0, "nothing is lost");
        assert_eq!(on.collectives.stats().registrations, 0);
        on.eager(GRANULE, 0);
        on.eager(3 * GRANULE, 0);
        error.kind().clone()
    });
    assert!(kinds.iter().all(|kind| *kind == kinds[0]), "{kinds:?}");
}

/// An output that the test keeps a hold of.
#[derive(Clone, Debug, Default)]
struct Tape(Arc<Mutex<Vec<u8>>>);

impl Write for Tape {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// invariant 50
#[rstest]
fn a_recorded_and_checked_run_replays_to_its_totals(
    #[values("exact", "replace", "geometric", "geometric-class", "arena")] name: &str,
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let mut config = ScratchConfig::with_policy(name);
    config.check = true;
    config.agree_deadline = DEADLINE;
    let world = HostWorld::new(2).model(hostile(mode)).deadline(DEADLINE);
    let traces = world.run(|comm| {
        let host = Arc::clone(comm.host_device());
        let tape = Tape::default();
        let comm = config.decorate(Box::new(comm));
        assert!(comm.capabilities().compares_calls);
        let scratch = Recorded::new(config.build().unwrap(), tape.clone());
        let mut on = Collectives::new(comm, scratch);
        on.set_staging(Staging::Forced);
        let device = Arc::clone(on.device());
        let mut stream = device.create_stream().unwrap();
        let other = device.create_stream().unwrap();
        let mut tensor = Buffer::from_slice(&device, &[1_i32; 5000], &stream).unwrap();
        on.all_reduce(&mut tensor, ReduceOp::Sum, &stream).unwrap();
        let capture = Capture::begin(&*device, &mut stream).unwrap();
        on.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())
            .unwrap();
        let mut graph = capture.end().unwrap().instantiate().unwrap();
        for count in [1 << 15, 3000, 1 << 16, 5000] {
            let mut large = Buffer::from_slice(&device, &vec![1_i32; count], &other).unwrap();
            on.all_reduce(&mut large, ReduceOp::Sum, &other).unwrap();
            assert!(large.read(&other).unwrap().iter().all(|&value| value == 2));
            graph.launch(&*device, &stream).unwrap();
        }
        let doubled = tensor.read(&stream).unwrap();
        assert!(doubled.iter().all(|&value| value == 32), "five times");
        on.scratch().flush().unwrap();
        let stats = on.stats();
        drop(graph);
        host.wait_for_destructors();
        let events = trace::read(&**tape.0.lock().unwrap()).unwrap();
        let replay = Replay {
            policy: &*registry::snapshot().build_policy(&config).unwrap(),
            options: &config.options(),
            granule: GRANULE,
            overhead: 0,
        };
        let totals = replay.run(&events);
        assert_eq!(
            (totals.requests, totals.hits, totals.growths),
            (stats.requests, stats.hits, stats.growths)
        );
        assert_eq!(stats.requests, stats.hits + stats.growths);
        let _ = on.close().unwrap();
        tape.0.lock().unwrap().clone()
    });
    assert_eq!(traces[0], traces[1], "every rank decided alike");
}

// invariant 46
#[rstest]
fn everything_may_be_dropped_in_any_order(
    #[values(0, 1, 2, 3, 4, 5)] order: usize,
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    HostWorld::new(2)
        .model(hostile(mode))
        .deadline(DEADLINE)
        .run(|comm| {
            let mut on = rig(comm, "replace");
            let graph = capture(&mut on, HALF);
            on.eager(3 * HALF, 0);
            let Rig {
                collectives,
                host,
                device,
                stream,
                ..
            } = on;
            let mut things: Vec<Box<dyn Send>> =
                vec![Box::new(collectives), Box::new(graph), Box::new(stream)];
            drop(things.remove(order % 3));
            drop(things.remove(order % 2));
            drop(things);
            host.wait_for_destructors();
            device.collect();
            host.check_memory().unwrap();
        });
}

// invariant 18
#[rstest]
fn scratch_never_lies_in_a_window_of_the_user(#[values(Inline, Asynchronous)] mode: StreamMode) {
    HostWorld::new(2)
        .model(hostile(mode))
        .deadline(DEADLINE)
        .run(|comm| {
            let mut on = rig(comm, "geometric");
            let mut tensor = on.collectives.symmetric_buffer::<i32>(HALF / 4).unwrap();
            let ours = on.input(HALF / 4, 0);
            tensor.write(&ours, &on.stream).unwrap();
            let window = tensor.window().unwrap().window;
            for bytes in [HALF, 3 * HALF] {
                on.eager(bytes, 0);
            }
            assert_eq!(tensor.read(&on.stream).unwrap(), ours);
            let _ = on.collectives.trim().unwrap();
            assert_eq!(tensor.window().map(|slice| slice.window), Some(window));
            assert_eq!(tensor.read(&on.stream).unwrap(), ours);
        });
}

// invariant 28
#[rstest]
fn a_result_survives_later_uses_and_replays_of_the_slot_it_was_staged_through(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    HostWorld::new(2)
        .model(hostile(mode))
        .deadline(DEADLINE)
        .run(|comm| {
            let mut on = rig(comm, "geometric");
            let mut graph = capture(&mut on, HALF);
            let count = HALF / 4;
            let mut result =
                Buffer::from_slice(&on.device, &on.input(count, 5), &on.stream).unwrap();
            let report = on
                .collectives
                .all_reduce(&mut result, ReduceOp::Sum, &on.stream)
                .unwrap();
            assert_eq!(
                report.slot.map(|slot| slot.0),
                Some(1),
                "the slot that the graph owns"
            );
            on.replay(&mut graph, 3, &on.stream);
            on.eager(HALF, 0);
            assert_eq!(
                result.read(&on.stream).unwrap(),
                on.expected(count, 5, &[ReduceOp::Sum])
            );
        });
}

// invariants 33 and 34
#[rstest]
fn uneven_counts_give_the_same_decisions_on_all_ranks(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let digests = HostWorld::new(3)
        .model(hostile(mode))
        .deadline(DEADLINE)
        .run(|comm| {
            let mut on = rig(comm, "geometric");
            for counts in [[1, 70_000, 9], [500_000, 1, 1], [3, 3, 900_000]] {
                let send =
                    Buffer::from_slice(&on.device, &on.input(counts[on.rank], 0), &on.stream);
                let mut recv =
                    Buffer::<i32>::zeroed(&on.device, counts.iter().sum(), &on.stream).unwrap();
                let _ = on
                    .collectives
                    .all_gather_v(&send.unwrap(), &mut recv, &counts, &on.stream)
                    .unwrap();
            }
            let stats = on.collectives.stats();
            (stats.digest, stats.requests, stats.slots)
        });
    assert!(
        digests.iter().all(|digest| *digest == digests[0]),
        "{digests:?}"
    );
}
