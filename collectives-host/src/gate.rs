//! For tests: work that stays in flight until it is told to go on.

use std::sync::{Arc, Condvar, Mutex};

use collectives_core::addr::Addr;
use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::memory::Memory;
use collectives_core::stream::StreamRef;

use crate::capture::{Node, Prepared};
use crate::device::HostDevice;
use crate::queue::{Turn, take_turn};

/// Closed until it is opened, for good.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    pub(crate) fn pass(&self) {
        let mut open = self.0.0.lock().unwrap();
        while !*open {
            open = self.0.1.wait(open).unwrap();
        }
    }
}

/// A node that passes a gate, and may fail at launch or while it runs.
#[derive(Debug)]
pub(crate) struct GateNode {
    pub(crate) gate: Gate,
    pub(crate) prepared: Result<()>,
    pub(crate) run: Result<()>,
}

impl GateNode {
    pub(crate) fn new(gate: &Gate) -> Self {
        Self {
            gate: gate.clone(),
            prepared: Ok(()),
            run: Ok(()),
        }
    }
}

impl Node for GateNode {
    fn prepare(self: Arc<Self>) -> Result<Prepared> {
        self.prepared.clone()?;
        Ok(Box::new(move || {
            self.gate.pass();
            self.run.clone()
        }))
    }
}

/// Enqueues work on a stream that does not capture, as a communicator would.
pub(crate) fn enqueue(
    device: &HostDevice,
    stream: &StreamRef,
    work: impl FnOnce() -> Result<()> + Send + 'static,
) -> Result<()> {
    match take_turn(device.queue(stream)?)? {
        Turn::Inline(_turn) => work(),
        Turn::Queued(turn) => {
            turn.push(Box::new(work));
            Ok(())
        }
        Turn::Captured(_) => panic!("the stream captures"),
    }
}

/// Records a node on a stream that captures.
pub(crate) fn record(device: &HostDevice, stream: &StreamRef, node: impl Node + 'static) {
    match take_turn(device.queue(stream).unwrap()).unwrap() {
        Turn::Captured(turn) => turn.push(Arc::new(node)),
        Turn::Inline(_) | Turn::Queued(_) => panic!("the stream does not capture"),
    }
}

/// Sets the first byte of `memory` in stream order.
pub(crate) fn put(device: &HostDevice, memory: &Memory, value: u8, stream: &StreamRef) {
    // SAFETY: The memory is valid and the tests only use it in stream order.
    unsafe { device.write(memory.addr(), &[value], stream) }.unwrap();
}

/// The first byte of `memory` in stream order.
pub(crate) fn get(device: &HostDevice, memory: &Memory, stream: &StreamRef) -> u8 {
    get_at(device, memory.addr(), stream)
}

/// The byte at `addr` in stream order.
pub(crate) fn get_at(device: &HostDevice, addr: Addr, stream: &StreamRef) -> u8 {
    let mut byte = [0];
    // SAFETY: As for `put`.
    unsafe { device.read(&mut byte, addr, stream) }.unwrap();
    byte[0]
}

/// Copies the first byte in stream order.
pub(crate) fn copy(device: &HostDevice, dst: &Memory, src: &Memory, stream: &StreamRef) {
    // SAFETY: Both are valid until the copy has run: the tests keep them, or a graph does.
    unsafe { device.copy(dst.addr(), src.addr(), 1, stream) }.unwrap();
}
