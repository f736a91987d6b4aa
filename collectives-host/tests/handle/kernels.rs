//! A framework's own work on buffers, ordered with the collectives on them.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use collectives_core::buffer::Buffer;
use collectives_core::device::Device;
use collectives_core::error::{Error, Misuse, Result};
use collectives_core::graph::Capture;
use collectives_core::kernel;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;
use collectives_core::stream::Stream;
use collectives_core::tensor::Tensor;
use collectives_host::device::HostDevice;
use collectives_host::model::DeviceModel;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use rstest::rstest;

use crate::{all, device};

/// A kernel that copies one buffer into another.
fn duplicate(
    device: &dyn Device,
    from: &Buffer<u32>,
    to: &Buffer<u32>,
    stream: &Stream,
) -> Result<()> {
    let (from, to): (&dyn Tensor, &dyn Tensor) = (from, to);
    kernel::launch(device, &[to, from], stream, || {
        let (from, to) = (from.operand(), to.operand());
        // SAFETY: Both are as long, and of two memories, which `kernel::launch` keeps and orders.
        unsafe { device.copy(to.addr, from.addr, from.bytes, stream) }
    })
}

#[test]
fn a_kernel_waits_for_a_collective_on_another_stream_and_later_uses_for_the_kernel() {
    let (enqueued, late) = mpsc::channel();
    let late = Mutex::new(late);
    all(Asynchronous, 2, |collectives, stream| {
        let device = device(collectives);
        // So that a call waits for nobody on the host.
        let _plan = collectives.reserve(&[Request::new(4000)])?;
        let (beside, reads) = (device.create_stream()?, device.create_stream()?);
        let mut tensor = Buffer::from_slice(&device, &[1_u32; 1000], stream)?;
        let copy = Buffer::zeroed(&device, 1000, stream)?;
        let first = collectives.rank().index() == 0;
        if !first {
            // Until the other rank has enqueued everything, its collective cannot have run.
            let late = late.lock().unwrap();
            late.recv_timeout(Duration::from_secs(10)).unwrap();
        }
        collectives.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
        duplicate(&*device, &tensor, &copy, &beside)?;
        if first {
            enqueued.send(()).unwrap();
        }
        assert_eq!(copy.read(&reads)?, [2; 1000]);
        // Not before the kernel has read it.
        tensor.write(&[7; 1000], &reads)?;
        assert_eq!(copy.read(stream)?, [2; 1000]);
        Ok(())
    });
}

#[rstest]
fn a_captured_kernel_owns_what_it_uses(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 2, |collectives, stream| {
        let device = device(collectives);
        let mut tensor = Buffer::<u32>::zeroed(&device, 100, stream)?;
        let copy = Buffer::zeroed(&device, 100, stream)?;
        let hidden = Buffer::zeroed(&device, 100, stream)?;
        let mut branch = device.create_stream()?;
        let _plan = collectives.reserve(&[Request::new(400)])?;
        let capture = Capture::begin(&*device, stream)?;
        collectives.all_reduce(&mut tensor, ReduceOp::Sum, capture.stream())?;
        capture.branch(&mut branch, |branch| {
            duplicate(&*device, &tensor, &hidden, branch)
        })?;
        duplicate(&*device, &hidden, &copy, capture.stream())?;
        let mut graph = capture.end()?.instantiate()?;
        drop(hidden);
        for round in 1..=3_u32 {
            // Would lie where the hidden one was, if that were free.
            let other = Buffer::from_slice(&device, &[9_u32; 100], stream)?;
            tensor.write(&[round; 100], stream)?;
            graph.launch(&*device, stream)?;
            assert_eq!(copy.read(stream)?, [2 * round; 100]);
            assert_eq!(other.read(stream)?, [9; 100]);
        }
        Ok(())
    });
}

#[test]
fn memory_and_streams_of_another_device_are_refused_before_anything_is_enqueued() {
    let wrong = |error: Error| matches!(error.misuse(), Some(Misuse::WrongDevice { .. }));
    let elsewhere: Arc<dyn Device> = HostDevice::new(DeviceModel::new()).unwrap();
    all(Inline, 1, |collectives, stream| {
        let device = device(collectives);
        let ours = Buffer::<u32>::zeroed(&device, 4, stream)?;
        let foreign = elsewhere.create_stream()?;
        let theirs = Buffer::<u32>::zeroed(&elsewhere, 4, &foreign)?;
        let unused = || -> Result<()> { panic!("must not be enqueued") };
        let refused = kernel::launch(&*device, &[&theirs], stream, unused);
        assert!(wrong(refused.unwrap_err()));
        let refused = kernel::launch(&*device, &[&ours], &foreign, unused);
        assert!(wrong(refused.unwrap_err()));
        let capture = Capture::begin(&*device, stream)?;
        let refused = kernel::launch(&*device, &[&ours, &theirs], capture.stream(), unused);
        assert!(wrong(refused.unwrap_err()));
        drop(capture);
        assert_eq!(ours.read(stream)?, [0; 4]);
        Ok(())
    });
}
