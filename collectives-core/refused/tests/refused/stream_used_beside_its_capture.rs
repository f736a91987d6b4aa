//! Nobody can enqueue on a stream through another name while it captures.

use collectives_core::device::Device;
use collectives_core::error::Result;
use collectives_core::graph::Capture;
use collectives_core::stream::Stream;

fn enqueues(_stream: &Stream) {}

fn uses_it_meanwhile(device: &dyn Device, stream: &mut Stream) -> Result<()> {
    let capture = Capture::begin(device, stream)?;
    enqueues(stream);
    capture.end()?;
    Ok(())
}

fn main() {}
