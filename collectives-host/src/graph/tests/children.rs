//! Graphs that are nodes of other graphs.

use super::*;

/// A graph of a copy from `to` to `trace`, and another graph after it.
fn parent(
    device: &HostDevice,
    stream: &mut Stream,
    child: &Graph,
    to: &Memory,
    trace: &Memory,
) -> Graph {
    let recording = Capture::begin(device, stream).unwrap();
    copy(device, trace, to, recording.stream());
    recording.embed(child).unwrap();
    recording.end().unwrap()
}

#[test]
fn a_child_runs_at_its_place_and_its_memory_belongs_to_every_parent() {
    for mode in MODES {
        let device = device();
        let mut stream = device.create_stream_with(mode).unwrap();
        let (to, trace) = (device.allocate(1).unwrap(), device.allocate(1).unwrap());
        let block = device.allocate_symmetric(1).unwrap();
        put(&device, &block, 42, &stream);
        let child = reader(&device, &mut stream, block, &to);
        let graph = parent(&device, &mut stream, &child, &to, &trace);
        let outer = parent(&device, &mut stream, &graph, &to, &trace);
        drop(child);
        assert_eq!((graph.node_count(), outer.node_count()), (2, 2));
        let clone = outer.duplicate().unwrap();
        drop((graph, outer));
        assert_eq!(
            mapped(&device),
            1,
            "a clone of the parent owns what the child did"
        );
        let mut executable = clone.instantiate().unwrap();
        drop(clone);
        put(&device, &to, 7, &stream);
        executable.launch(&*device, &stream).unwrap();
        assert_eq!(
            get(&device, &trace, &stream),
            7,
            "the copy before the child"
        );
        assert_eq!(get(&device, &to, &stream), 42, "the child");
        drop(executable);
        device.synchronize(&stream).unwrap();
        assert_eq!(mapped(&device), 0);
    }
}

#[test]
fn fences_in_children_order_replays_like_any_other() {
    let device = device();
    let mut stream = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let other = device.create_stream_with(StreamMode::Asynchronous).unwrap();
    let (to, trace) = (device.allocate(1).unwrap(), device.allocate(1).unwrap());
    let fence = device.create_fence().unwrap();
    let gate = Gate::default();
    let child = capture(&device, &mut stream, |stream| {
        record(&device, stream, GateNode::new(&gate));
        device.record(&fence, stream).unwrap();
    });
    let graph = parent(&device, &mut stream, &child, &to, &trace);
    let mut executable = graph.instantiate().unwrap();
    executable.launch(&*device, &stream).unwrap();
    device.wait(&fence, &other).unwrap();
    assert!(!device.query(&other).unwrap());
    gate.open();
    device.synchronize(&other).unwrap();
}

#[test]
fn an_update_compares_and_replaces_children_too() {
    let device = device();
    let mut stream = device.create_stream().unwrap();
    let (to, trace) = (device.allocate(1).unwrap(), device.allocate(1).unwrap());
    let blocks = [1, 2].map(|value| {
        let block = device.allocate_symmetric(1).unwrap();
        put(&device, &block, value, &stream);
        block
    });
    let [first, second] = blocks.map(|block| {
        let child = reader(&device, &mut stream, block, &to);
        parent(&device, &mut stream, &child, &to, &trace)
    });
    let longer = capture(&device, &mut stream, |stream| {
        copy(&device, &to, &trace, stream);
        copy(&device, &to, &trace, stream);
    });
    let longer = parent(&device, &mut stream, &longer, &to, &trace);
    let mut executable = first.instantiate().unwrap();
    drop(first);
    assert!(
        executable.update(&longer).is_err(),
        "the children differ in shape"
    );
    executable.update(&second).unwrap();
    drop(second);
    assert_eq!(mapped(&device), 1, "what the old child owned is gone");
    executable.launch(&*device, &stream).unwrap();
    assert_eq!(get(&device, &to, &stream), 2);
}

#[test]
fn a_child_needs_a_capture_and_a_graph_of_the_same_device() {
    let (device, foreign) = (device(), device());
    let mut stream = device.create_stream().unwrap();
    let mut strange = foreign.create_stream().unwrap();
    let child = capture(&foreign, &mut strange, |_| {});
    let recording = Capture::begin(&*device, &mut stream).unwrap();
    let error = recording.embed(&child).unwrap_err();
    assert_eq!(
        error.misuse(),
        Some(&Misuse::WrongDevice { what: "the graph" })
    );
    assert_eq!(recording.end().unwrap().node_count(), 0);
}
