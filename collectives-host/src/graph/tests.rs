use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use collectives_core::device::Device;
use collectives_core::error::ErrorKind;
use collectives_core::graph::{Capture, Executable, Graph};
use collectives_core::stream::{Fence, Stream};
use rstest::rstest;

use crate::capture::{Node, Prepared};
use crate::device::HostDevice;
use crate::gate::{Gate, GateNode, copy, get, get_at, put, record};
use crate::model::{DeviceModel, StreamMode};

use super::*;

#[path = "tests/children.rs"]
mod children;

const MODES: [StreamMode; 2] = [StreamMode::Inline, StreamMode::Asynchronous];

fn device() -> Arc<HostDevice> {
    HostDevice::new(DeviceModel::new().with_poison(0xDB)).unwrap()
}

fn capture(device: &HostDevice, stream: &mut Stream, body: impl FnOnce(&StreamRef)) -> Graph {
    let capture = Capture::begin(device, stream).unwrap();
    body(capture.stream());
    capture.end().unwrap()
}

/// A graph that owns a block and copies its first byte to `to`.
fn reader(device: &HostDevice, stream: &mut Stream, block: Memory, to: &Memory) -> Graph {
    capture(device, stream, |stream| {
        device.retain(stream, block.clone()).unwrap();
        device.retain(stream, block.clone()).unwrap();
        copy(device, to, &block, stream);
    })
}

fn mapped(device: &HostDevice) -> usize {
    device.wait_for_destructors();
    device.collect();
    device.memory_report().symmetric_blocks
}

#[test]
fn a_replay_reads_the_recorded_addresses_again() {
    for mode in MODES {
        let device = device();
        let mut stream = device.create_stream_with(mode).unwrap();
        let (from, to) = (device.allocate(1).unwrap(), device.allocate(1).unwrap());
        put(&device, &from, 1, &stream);
        let graph = capture(&device, &mut stream, |stream| {
            copy(&device, &to, &from, stream)
        });
        assert_eq!(graph.node_count(), 1);
        assert_eq!(get(&device, &to, &stream), 0, "a capture runs nothing");
        let mut executable = graph.instantiate().unwrap();
        for value in 2..6 {
            put(&device, &from, value, &stream);
            executable.launch(&*device, &stream).unwrap();
            assert_eq!(get(&device, &to, &stream), value);
        }
    }
}

#[test]
fn branches_replay_in_an_order_their_forks_and_joins_allow() {
    let device = device();
    let mut stream = device.create_stream().unwrap();
    let mut branch = device.create_stream().unwrap();
    let bytes: Vec<_> = (0..4).map(|_| device.allocate(1).unwrap()).collect();
    let recording = Capture::begin(&*device, &mut stream).unwrap();
    copy(&device, &bytes[1], &bytes[0], recording.stream());
    recording
        .branch(&mut branch, |branch| {
            copy(&device, &bytes[2], &bytes[1], branch);
            Ok(())
        })
        .unwrap();
    copy(&device, &bytes[3], &bytes[2], recording.stream());
    let graph = recording.end().unwrap();
    assert_eq!(graph.node_count(), 3);
    put(&device, &bytes[0], 7, &stream);
    graph
        .instantiate()
        .unwrap()
        .launch(&*device, &stream)
        .unwrap();
    assert_eq!(get(&device, &bytes[3], &stream), 7);
    put(&device, &bytes[0], 8, &branch);
}

#[test]
fn clones_and_executables_own_the_memory_until_the_last_is_gone() {
    let device = device();
    let mut stream = device.create_stream().unwrap();
    let to = device.allocate(1).unwrap();
    let block = device.allocate_symmetric(1).unwrap();
    put(&device, &block, 42, &stream);
    let graph = reader(&device, &mut stream, block, &to);
    let clone = graph.duplicate().unwrap();
    let mut executable = graph.instantiate().unwrap();
    drop(graph);
    assert_eq!(mapped(&device), 1);
    drop(clone);
    assert_eq!(mapped(&device), 1);
    executable.launch(&*device, &stream).unwrap();
    assert_eq!(get(&device, &to, &stream), 42);
    drop(executable);
    assert_eq!(mapped(&device), 0);
}

#[test]
fn a_graph_that_does_not_own_its_memory_reads_poison() {
    let device = device();
    let mut stream = device.create_stream().unwrap();
    let to = device.allocate(1).unwrap();
    let block = device.allocate_symmetric(1).unwrap();
    put(&device, &block, 42, &stream);
    let graph = capture(&device, &mut stream, |stream| {
        copy(&device, &to, &block, stream)
    });
    let back = capture(&device, &mut stream, |stream| {
        copy(&device, &block, &to, stream)
    });
    drop(block);
    device.collect();
    graph
        .instantiate()
        .unwrap()
        .launch(&*device, &stream)
        .unwrap();
    assert_eq!(get(&device, &to, &stream), 0xDB);
    put(&device, &to, 1, &stream);
    back.instantiate()
        .unwrap()
        .launch(&*device, &stream)
        .unwrap();
    assert!(device.check_memory().is_err());
}

#[test]
fn a_replay_in_flight_keeps_the_memory_of_a_destroyed_executable() {
    let device = device();
    let mut stream = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let to = device.allocate(1).unwrap();
    let mut block = device.allocate_symmetric(1).unwrap();
    put(&device, &block, 42, &stream);
    let gate = Gate::default();
    let graph = capture(&device, &mut stream, |stream| {
        device.retain(stream, block.clone()).unwrap();
        record(&device, stream, GateNode::new(&gate));
        copy(&device, &to, &block, stream);
    });
    let mut executable = graph.instantiate().unwrap();
    executable.launch(&*device, &stream).unwrap();
    drop((graph, executable));
    device.wait_for_destructors();
    assert!(!block.is_sole_owner());
    gate.open();
    assert_eq!(get(&device, &to, &stream), 42);
    device.wait_for_destructors();
    assert!(block.is_sole_owner());
}

#[test]
fn memory_is_freed_only_after_the_work_of_its_last_user() {
    let device = device();
    let mut stream = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let to = device.allocate(1).unwrap();
    let block = device.allocate_symmetric(1).unwrap();
    let graph = reader(&device, &mut stream, block.clone(), &to);
    // The launch makes the stream the block's last user.
    graph
        .instantiate()
        .unwrap()
        .launch(&*device, &stream)
        .unwrap();
    device.synchronize(&stream).unwrap();
    let gate = Gate::default();
    let (held, addr) = (gate.clone(), block.addr());
    crate::gate::enqueue(&device, &stream, move || {
        held.pass();
        // SAFETY: The device frees the block only after this stream's work.
        unsafe { addr.as_ptr::<u8>().write(3) };
        Ok(())
    })
    .unwrap();
    drop((graph, block));
    assert_eq!(mapped(&device), 1);
    gate.open();
    device.synchronize(&stream).unwrap();
    assert_eq!(mapped(&device), 0);
    assert_eq!(device.check_memory(), Ok(()));
}

#[test]
fn memory_outlives_a_dropped_device_while_work_uses_it() {
    let device = device();
    let mut stream = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let to = device.allocate(1).unwrap();
    let block = device.allocate_symmetric(1).unwrap();
    let graph = reader(&device, &mut stream, block.clone(), &to);
    graph
        .instantiate()
        .unwrap()
        .launch(&*device, &stream)
        .unwrap();
    device.synchronize(&stream).unwrap();
    let gate = Gate::default();
    let (held, addr) = (gate.clone(), block.addr());
    let (sender, seen) = std::sync::mpsc::channel();
    crate::gate::enqueue(&device, &stream, move || {
        held.pass();
        // SAFETY: As above, also when the device is gone.
        unsafe { addr.as_ptr::<u8>().write(3) };
        sender.send(()).unwrap();
        Ok(())
    })
    .unwrap();
    drop((graph, block, to));
    device.wait_for_destructors();
    drop((device, stream));
    gate.open();
    seen.recv().unwrap();
}

#[test]
fn destructors_may_be_late() {
    let model = DeviceModel::new().with_destructor_delay(Duration::from_millis(40));
    let device = HostDevice::new(model).unwrap();
    let mut stream = device.create_stream().unwrap();
    let to = device.allocate(1).unwrap();
    let mut block = device.allocate_symmetric(1).unwrap();
    drop(reader(&device, &mut stream, block.clone(), &to));
    assert!(!block.is_sole_owner());
    device.wait_for_destructors();
    assert!(block.is_sole_owner());
}

#[test]
fn any_drop_order_ends() {
    for order in 0..24_usize {
        let device = device();
        let mut stream = device.create_stream_with(MODES[order % 2]).unwrap();
        let to = device.allocate(1).unwrap();
        let block = device.allocate_symmetric(1).unwrap();
        let graph = reader(&device, &mut stream, block.clone(), &to);
        let mut executable = graph.instantiate().unwrap();
        executable.launch(&*device, &stream).unwrap();
        let fence = device.create_fence().unwrap();
        device.record(&fence, &stream).unwrap();
        device.synchronize(&stream).unwrap();
        let mut things: Vec<Box<dyn Any>> = vec![
            Box::new(device),
            Box::new(stream),
            Box::new((graph, fence)),
            Box::new((executable, block, to)),
        ];
        let mut code = order;
        while !things.is_empty() {
            drop(things.swap_remove(code % things.len()));
            code /= things.len() + 1;
        }
    }
}

/// Takes a ticket at launch, and gives it back if it does not run.
#[derive(Debug)]
struct TicketNode(Arc<AtomicUsize>);

struct Ticket(Arc<AtomicUsize>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Node for TicketNode {
    fn prepare(self: Arc<Self>) -> Result<Prepared> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket(Arc::clone(&self.0));
        Ok(Box::new(move || {
            drop(ticket);
            Ok(())
        }))
    }
}

#[test]
fn when_one_node_cannot_be_prepared_nothing_runs_and_tickets_come_back() {
    for mode in MODES {
        let device = device();
        let mut stream = device.create_stream_with(mode).unwrap();
        let (from, to) = (device.allocate(1).unwrap(), device.allocate(1).unwrap());
        put(&device, &from, 1, &stream);
        let open = Gate::default();
        open.open();
        let tickets = Arc::new(AtomicUsize::new(0));
        let fence = device.create_fence().unwrap();
        let graph = capture(&device, &mut stream, |stream| {
            copy(&device, &to, &from, stream);
            record(&device, stream, TicketNode(Arc::clone(&tickets)));
            device.record(&fence, stream).unwrap();
            let mut node = GateNode::new(&open);
            node.prepared = Err(Error::new(ErrorKind::Closed));
            record(&device, stream, node);
        });
        let mut executable = graph.instantiate().unwrap();
        let error = executable.launch(&*device, &stream).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Closed);
        assert_eq!(tickets.load(Ordering::Relaxed), 0);
        assert_eq!(get(&device, &to, &stream), 0);
        device.synchronize(&stream).unwrap();
        device
            .wait(&fence, &device.create_stream().unwrap())
            .unwrap();
    }
}

#[test]
fn a_node_that_fails_fails_the_launch_or_the_stream() {
    for mode in MODES {
        let device = device();
        let mut stream = device.create_stream_with(mode).unwrap();
        let open = Gate::default();
        open.open();
        let tickets = Arc::new(AtomicUsize::new(0));
        let fence = device.create_fence().unwrap();
        let graph = capture(&device, &mut stream, |stream| {
            let mut node = GateNode::new(&open);
            node.run = Err(Error::new(ErrorKind::System("planned".to_owned())));
            record(&device, stream, node);
            record(&device, stream, TicketNode(Arc::clone(&tickets)));
            device.record(&fence, stream).unwrap();
        });
        let mut executable = graph.instantiate().unwrap();
        let launched = executable.launch(&*device, &stream);
        let outcome = launched.and(device.synchronize(&stream));
        assert!(outcome.unwrap_err().to_string().contains("planned"));
        assert_eq!(tickets.load(Ordering::Relaxed), 0);
        // The record counts as made, so nobody waits for ever.
        let other = device.create_stream().unwrap();
        device.wait(&fence, &other).unwrap();
        device.synchronize(&other).unwrap();
    }
}

#[test]
fn a_replay_that_fails_still_waits_so_that_who_is_ordered_after_it_waits_too() {
    let device = device();
    let mut broken = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let slow = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let third = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let fence = device.create_fence().unwrap();
    let fail = Gate::default();
    let graph = capture(&device, &mut broken, |stream| {
        let mut node = GateNode::new(&fail);
        node.run = Err(Error::new(ErrorKind::System("planned".to_owned())));
        record(&device, stream, node);
        device.wait(&fence, stream).unwrap();
    });
    let gate = Gate::default();
    let held = gate.clone();
    crate::gate::enqueue(&device, &slow, move || {
        held.pass();
        Ok(())
    })
    .unwrap();
    device.record(&fence, &slow).unwrap();
    let mut executables: Vec<_> = (0..2).map(|_| graph.instantiate().unwrap()).collect();
    for executable in &mut executables {
        // The second replay is skipped altogether.
        executable.launch(&*device, &broken).unwrap();
    }
    device.order(&broken, &third).unwrap();
    fail.open();
    thread::sleep(Duration::from_millis(5));
    assert!(!device.query(&third).unwrap());
    gate.open();
    device.synchronize(&third).unwrap();
    assert!(device.query(&slow).unwrap());
    assert!(device.synchronize(&broken).is_err());
}

#[test]
fn an_update_takes_the_new_work_and_the_new_memory() {
    let device = device();
    let mut stream = device.create_stream().unwrap();
    let to = device.allocate(1).unwrap();
    let (one, two) = (
        device.allocate_symmetric(1).unwrap(),
        device.allocate_symmetric(1).unwrap(),
    );
    put(&device, &one, 1, &stream);
    put(&device, &two, 2, &stream);
    let first = reader(&device, &mut stream, one, &to);
    let second = reader(&device, &mut stream, two, &to);
    let longer = capture(&device, &mut stream, |stream| {
        copy(&device, &to, &to, stream);
        device
            .record(&device.create_fence().unwrap(), stream)
            .unwrap();
    });
    let mut executable = first.instantiate().unwrap();
    drop(first);
    assert!(executable.update(&longer).is_err());
    executable.launch(&*device, &stream).unwrap();
    assert_eq!(get(&device, &to, &stream), 1);
    executable.update(&second).unwrap();
    drop(second);
    assert_eq!(mapped(&device), 1);
    executable.launch(&*device, &stream).unwrap();
    assert_eq!(get(&device, &to, &stream), 2);
    drop(executable);
    assert_eq!(mapped(&device), 0);
}

#[test]
fn a_capturing_stream_launches_nothing() {
    let device = device();
    let mut stream = device.create_stream().unwrap();
    let graph = capture(&device, &mut stream, |_| ());
    let mut executable = graph.instantiate().unwrap();
    let again = Capture::begin(&*device, &mut stream).unwrap();
    assert!(executable.launch(&*device, again.stream()).is_err());
    again.end().unwrap();
    executable.launch(&*device, &stream).unwrap();
}

/// Counts the replays that have come to it, and passes a gate.
#[derive(Debug)]
struct CountNode(Arc<AtomicUsize>, Gate);

impl Node for CountNode {
    fn prepare(self: Arc<Self>) -> Result<Prepared> {
        Ok(Box::new(move || {
            self.0.fetch_add(1, Ordering::SeqCst);
            self.1.pass();
            Ok(())
        }))
    }
}

#[test]
fn launches_of_one_executable_do_not_overlap() {
    let device = device();
    let mut one = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let two = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let (gate, entered) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
    let graph = capture(&device, &mut one, |stream| {
        record(
            &device,
            stream,
            CountNode(Arc::clone(&entered), gate.clone()),
        );
    });
    let mut executable = graph.instantiate().unwrap();
    executable.launch(&*device, &one).unwrap();
    executable.launch(&*device, &two).unwrap();
    // The second replay waits for the first stream, for which nothing else waits, or comes into the node.
    let first = device.queue(&one).unwrap().progress();
    while !first.is_waited_for() && entered.load(Ordering::SeqCst) < 2 {
        thread::yield_now();
    }
    let inside = entered.load(Ordering::SeqCst);
    gate.open();
    device.synchronize(&two).unwrap();
    assert!(inside < 2, "two replays at once");
    assert!(device.query(&one).unwrap());
    assert_eq!(entered.load(Ordering::SeqCst), 2);
}

/// Notes whether another launch could begin while this one is prepared.
#[derive(Debug)]
struct LockNode(Arc<HostDevice>, Arc<AtomicUsize>);

impl Node for LockNode {
    fn prepare(self: Arc<Self>) -> Result<Prepared> {
        if self.0.is_launching() {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
        Ok(Box::new(|| Ok(())))
    }
}

#[test]
fn one_launch_of_a_device_is_prepared_at_a_time() {
    for mode in MODES {
        let device = device();
        let mut stream = device.create_stream_with(mode).unwrap();
        let locked = Arc::new(AtomicUsize::new(0));
        let graph = capture(&device, &mut stream, |stream| {
            record(
                &device,
                stream,
                LockNode(Arc::clone(&device), Arc::clone(&locked)),
            );
        });
        let mut executable = graph.instantiate().unwrap();
        executable.launch(&*device, &stream).unwrap();
        device.synchronize(&stream).unwrap();
        assert_eq!(locked.load(Ordering::SeqCst), 1);
    }
}

/// Captures a use of the slot as the pool does: wait, use, record. The use checks that nobody
/// else is inside.
fn user(
    device: &HostDevice,
    stream: &mut Stream,
    fence: &Fence,
    inside: &Arc<AtomicUsize>,
) -> Executable {
    let graph = capture(device, stream, |stream| {
        device.wait(fence, stream).unwrap();
        record(device, stream, SoleUse(Arc::clone(inside)));
        device.record(fence, stream).unwrap();
    });
    assert_eq!(graph.node_count(), 3);
    graph.instantiate().unwrap()
}

#[derive(Debug)]
struct SoleUse(Arc<AtomicUsize>);

fn use_alone(inside: &AtomicUsize) -> Result<()> {
    let others = inside.fetch_add(1, Ordering::SeqCst);
    thread::yield_now();
    inside.fetch_sub(1, Ordering::SeqCst);
    if others > 0 {
        return Err(Misuse::Other("two uses at once".to_owned()).into());
    }
    Ok(())
}

impl Node for SoleUse {
    fn prepare(self: Arc<Self>) -> Result<Prepared> {
        Ok(Box::new(move || use_alone(&self.0)))
    }
}

#[rstest]
fn graphs_and_eager_work_that_share_a_fence_never_meet(
    #[values(StreamMode::Inline, StreamMode::Asynchronous)] eager: StreamMode,
    #[values(StreamMode::Inline, StreamMode::Asynchronous)] replayed: StreamMode,
) {
    let device = device();
    let fence = device.create_fence().unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let eager = device.create_stream_with(eager).unwrap();
    let mut streams: Vec<_> = (0..3)
        .map(|_| device.create_stream_with(replayed).unwrap())
        .collect();
    let mut users: Vec<_> = streams
        .iter_mut()
        .map(|stream| user(&device, stream, &fence, &inside))
        .collect();
    for round in 0..300 {
        device.wait(&fence, &eager).unwrap();
        let own = Arc::clone(&inside);
        crate::gate::enqueue(&device, &eager, move || use_alone(&own)).unwrap();
        device.record(&fence, &eager).unwrap();
        for (k, user) in users.iter_mut().enumerate() {
            user.launch(&*device, &streams[(k + round) % 3]).unwrap();
        }
    }
    for stream in streams.iter().chain([&eager]) {
        device.synchronize(stream).unwrap();
    }
}

#[rstest]
#[case(StreamMode::Inline)]
#[case(StreamMode::Asynchronous)]
fn graphs_launched_by_several_threads_never_meet_and_never_wait_for_each_other_in_a_ring(
    #[case] mode: StreamMode,
) {
    let device = device();
    let fences = [
        device.create_fence().unwrap(),
        device.create_fence().unwrap(),
    ];
    let inside = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
    thread::scope(|scope| {
        for first in 0..3_usize {
            let (device, fences, inside) = (&device, &fences, &inside);
            scope.spawn(move || {
                let mut stream = device.create_stream_with(mode).unwrap();
                let idle = device.create_fence().unwrap();
                let graph = capture(device, &mut stream, |stream| {
                    for k in [first % 2, (first + 1) % 2] {
                        device.wait(&fences[k], stream).unwrap();
                        // They make it long until the record, in case launches are torn apart.
                        for _ in 0..200 {
                            device.wait(&idle, stream).unwrap();
                        }
                        record(device, stream, SoleUse(Arc::clone(&inside[k])));
                        device.record(&fences[k], stream).unwrap();
                    }
                });
                let mut executable = graph.instantiate().unwrap();
                for _ in 0..300 {
                    executable.launch(&**device, &stream).unwrap();
                }
                device.synchronize(&stream).unwrap();
            });
        }
    });
}

#[test]
fn without_the_fence_uses_do_meet() {
    let device = device();
    let inside = Arc::new(AtomicUsize::new(0));
    let streams: Vec<_> = (0..2)
        .map(|_| device.create_stream_with(StreamMode::Asynchronous).unwrap())
        .collect();
    // The check itself: two gated uses that overlap for sure.
    let gate = Gate::default();
    for stream in &streams {
        let (gate, inside) = (gate.clone(), Arc::clone(&inside));
        crate::gate::enqueue(&device, stream, move || {
            let others = inside.fetch_add(1, Ordering::SeqCst);
            gate.pass();
            match others {
                0 => Ok(()),
                _ => Err(Misuse::Other("two uses at once".to_owned()).into()),
            }
        })
        .unwrap();
    }
    while inside.load(Ordering::SeqCst) < 2 {
        thread::yield_now();
    }
    gate.open();
    let outcomes: Vec<_> = streams
        .iter()
        .map(|stream| device.synchronize(stream).is_ok())
        .collect();
    assert_eq!(outcomes.iter().filter(|ok| **ok).count(), 1);
}

#[test]
fn a_launch_waits_for_the_latest_record_of_another_stream() {
    let device = device();
    let fence = device.create_fence().unwrap();
    let mut stream = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let other = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let (from, to) = (device.allocate(1).unwrap(), device.allocate(1).unwrap());
    let graph = capture(&device, &mut stream, |stream| {
        device.wait(&fence, stream).unwrap();
        copy(&device, &to, &from, stream);
    });
    let mut executable = graph.instantiate().unwrap();
    for value in 1..4 {
        let gate = Gate::default();
        let (held, addr) = (gate.clone(), from.addr());
        crate::gate::enqueue(&device, &other, move || {
            held.pass();
            // SAFETY: The memory outlives the work; the graph waits for the fence before its use.
            unsafe { addr.as_ptr::<u8>().write(value) };
            Ok(())
        })
        .unwrap();
        device.record(&fence, &other).unwrap();
        executable.launch(&*device, &stream).unwrap();
        gate.open();
        assert_eq!(get_at(&device, to.addr(), &stream), value);
    }
}
