//! Reading within a time in all, however slowly the bytes come.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A stream that must be read before an instant.
#[derive(Debug)]
pub(super) struct Limited<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl<'a> Limited<'a> {
    pub(super) fn new(stream: &'a TcpStream, until: Instant) -> Self {
        Self { stream, until }
    }

    pub(super) fn stream(&self) -> &'a TcpStream {
        self.stream
    }
}

impl Read for Limited<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Less than the clock of a socket can count would mean no limit at all.
        let left = left.max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

/// The instant after this duration, however absurd the duration is.
pub(super) fn deadline_in(duration: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + duration.min(FAR)
}
