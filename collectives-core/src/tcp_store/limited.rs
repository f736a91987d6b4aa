//! What is limited: the time for reading, in all and however slowly the bytes come, and what a
//! process may have.

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

/// Whether this process has not enough of something for another socket, most often descriptors.
#[cfg(unix)]
pub(super) fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;

    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    let is_one = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    shortages.into_iter().any(is_one)
}

#[cfg(not(unix))]
pub(super) fn is_shortage(_error: &io::Error) -> bool {
    false
}

/// The instant after this duration, however absurd the duration is.
pub(super) fn deadline_in(duration: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + duration.min(FAR)
}
