//! Streams and events.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use crate::captures::{CAPTURING, Fork};
use crate::devices::{CAPTURE_UNSUPPORTED, context_of, current};
use crate::graphs::EVENT;
use crate::work::{Mark, Step, Task};
use crate::world::{Handle, INVALID_VALUE, Kind, Out, World, functions};

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`.
const ISOLATION: c_int = 905;
/// `CUDA_ERROR_CAPTURED_EVENT`.
const CAPTURED_EVENT: c_int = 907;
/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`.
const EXTERNAL: c_uint = 1;

#[derive(Default)]
pub(crate) struct StreamData {
    device: usize,
    pub(crate) capture: Option<u64>,
    /// Its work, in order.
    pub(crate) queue: VecDeque<Step>,
    /// Whether it was destroyed, and goes when its work is done.
    pub(crate) gone: bool,
}

/// An event: what was recorded last, in a capture or not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Event {
    pub(crate) handle: Handle,
    pub(crate) mark: Arc<Mark>,
    captured: Option<Fork>,
}

impl World {
    /// What a stream may not be asked while it captures.
    fn not_capturing(&mut self, stream: Handle) -> Result<(), c_int> {
        self.check(stream, Kind::Stream)?;
        if self.capture_of(stream).is_some() {
            self.wrong.push(format!(
                "a stream that captures was waited for: {stream:#x}"
            ));
            return Err(CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    pub(crate) fn capture_of(&self, stream: Handle) -> Option<u64> {
        self.streams.get(&stream).and_then(|stream| stream.capture)
    }

    fn event(&mut self, event: Handle) -> Result<Event, c_int> {
        self.check(event, Kind::Event)?;
        self.events.get(&event).cloned().ok_or(INVALID_VALUE)
    }

    fn record_event(
        &mut self,
        handle: Handle,
        stream: Handle,
        external: bool,
    ) -> Result<(), c_int> {
        self.check(stream, Kind::Stream)?;
        let event = self.event(handle)?;
        let captured = match self.capture_of(stream) {
            Some(capture) if !external => Some(self.fork_of(capture, stream)?),
            _ => None,
        };
        let inside = captured.is_some();
        if let Some(event) = self.events.get_mut(&handle) {
            event.captured = captured;
        }
        match inside {
            true => Ok(()),
            false => self.submit(stream, Task::Record(event), EVENT),
        }
    }

    fn wait_event(&mut self, handle: Handle, stream: Handle, external: bool) -> Result<(), c_int> {
        self.check(stream, Kind::Stream)?;
        let event = self.event(handle)?;
        match (event.captured, self.capture_of(stream)) {
            (Some(fork), capture) if !external => self.join(fork, stream, capture),
            (None, Some(_)) if !external => Err(ISOLATION),
            _ => self.submit(stream, Task::Wait(event), EVENT),
        }
    }

    /// Whether an event was reached; work that can run does so first.
    fn is_reached(&mut self, handle: Handle) -> Result<bool, c_int> {
        let event = self.event(handle)?;
        if event.captured.is_some() {
            return Err(CAPTURED_EVENT);
        }
        self.advance();
        Ok(event.mark.is_reached())
    }
}

functions! {
    fn cuStreamCreate(stream: Out<Handle>, _flags: c_uint) |world| {
        let device = current()?;
        let handle = world.make(Kind::Stream);
        let made = StreamData { device, ..StreamData::default() };
        world.streams.insert(handle, made);
        stream.put(handle);
        Ok(())
    }
    fn cuStreamDestroy_v2(stream: Handle) |world| {
        world.end(stream, Kind::Stream)?;
        if let Some(data) = world.streams.get_mut(&stream) {
            data.gone = true;
        }
        world.advance();
        world.forget_if_done(stream);
        Ok(())
    }
    fn cuStreamGetId(stream: Handle, id: Out<u64>) |world| {
        world.check(stream, Kind::Stream)?;
        id.put(stream as u64);
        Ok(())
    }
    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) |world| {
        world.check(stream, Kind::Stream)?;
        context.put(world.streams.get(&stream).map_or(0, |stream| context_of(stream.device)));
        Ok(())
    }
    fn cuStreamQuery(stream: Handle) |world| {
        world.not_capturing(stream)?;
        if world.is_idle(stream) { Ok(()) } else { Err(NOT_READY) }
    }
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) |world| {
        world.wait_event(event, stream, flags & EXTERNAL != 0)
    }
    fn cuStreamIsCapturing(stream: Handle, status: Out<c_int>) |world| {
        world.check(stream, Kind::Stream)?;
        status.put(if world.capture_of(stream).is_some() { CAPTURING } else { 0 });
        Ok(())
    }
    fn cuEventCreate(event: Out<Handle>, _flags: c_uint) |world| {
        current()?;
        let handle = world.make(Kind::Event);
        world.events.insert(handle, Event { handle, ..Event::default() });
        event.put(handle);
        Ok(())
    }
    fn cuEventDestroy_v2(event: Handle) |world| {
        world.end(event, Kind::Event)?;
        world.events.remove(&event);
        Ok(())
    }
    fn cuEventRecord(event: Handle, stream: Handle) |world| {
        world.record_event(event, stream, false)
    }
    fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) |world| {
        world.record_event(event, stream, flags & EXTERNAL != 0)
    }
    fn cuEventQuery(event: Handle) |world| {
        world.unsafe_in_capture()?;
        if world.is_reached(event)? { Ok(()) } else { Err(NOT_READY) }
    }
}

functions! { waits
    fn cuStreamSynchronize(stream: Handle) |world| {
        world.not_capturing(stream)?;
        world.unsafe_in_capture()?;
        Ok(world.is_idle(stream).then_some(()))
    }
    fn cuEventSynchronize(event: Handle) |world| {
        Ok(world.is_reached(event)?.then_some(()))
    }
}
