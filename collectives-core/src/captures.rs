//! Which captures calls were recorded into, as far as they go on.
//!
//! Nothing is registered, retired or allocated while a stream captures. A device says of a stream
//! whether it captures, and not of a capture whether it goes on; so who records calls keeps the
//! streams that it recorded them on.

use crate::device::Device;
use crate::error::ErrorKind;
use crate::rank::CaptureId;
use crate::stream::StreamRef;

/// The captures that calls of one handle, or of one allocator, were recorded into.
///
/// A capture that was seen on nothing but branches which have joined counts as ended.
#[derive(Debug, Default)]
pub struct Captures(Vec<Noted>);

#[derive(Debug)]
struct Noted {
    id: CaptureId,
    /// Its streams that were seen: a branch that joins leaves the capture, which goes on.
    streams: Vec<StreamRef>,
}

impl Captures {
    /// Notes that a call is recorded on a stream of this capture; whether that is news.
    pub fn note(&mut self, device: &dyn Device, id: CaptureId, stream: &StreamRef) -> bool {
        if let Some(noted) = self.0.iter_mut().find(|noted| noted.id == id) {
            let known = noted.streams.iter().any(|known| known.is_same_as(stream));
            if !known {
                noted.streams.push(stream.clone());
            }
            return !known;
        }
        self.forget_ended(device);
        self.0.push(Noted {
            id,
            streams: vec![stream.clone()],
        });
        true
    }

    /// Whether any of them goes on.
    pub fn any_goes_on(&mut self, device: &dyn Device) -> bool {
        self.forget_ended(device);
        !self.0.is_empty()
    }

    fn forget_ended(&mut self, device: &dyn Device) {
        self.0.retain(|noted| {
            // The capture of a stream that is gone can neither be ended nor go on.
            let mut streams = noted.streams.iter().filter(|stream| !stream.is_gone());
            streams.any(|stream| match device.capture_state(stream) {
                Ok(state) => state == Some(noted.id),
                // A capture that was invalidated has not ended. A stream that failed records nothing any
                // more, and says so for ever.
                Err(error) => matches!(error.kind(), ErrorKind::Capture(_)),
            })
        });
    }
}
