//! What ranks print, line by line, in the order it arrived.

use std::fmt;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use collectives_core::rank::Rank;

/// Longer lines are taken in pieces.
const MAX_LINE: usize = 1 << 16;
/// What is kept of one stream of one rank; the rest is read, and dropped.
const MAX_KEPT: usize = 4 << 20;

/// Where a rank printed a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One line that a rank printed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line {
    /// The rank.
    pub rank: Rank,
    /// The stream.
    pub stream: Stream,
    /// The text, without the end of the line.
    pub text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[rank {}] {}", self.rank, self.text)
    }
}

/// The lines of all ranks.
#[derive(Clone, Debug, Default)]
pub(super) struct Output(Arc<Mutex<Vec<Line>>>);

impl Output {
    /// Reads a stream of a rank to its end on a thread of its own.
    pub(super) fn collect(
        &self,
        rank: Rank,
        stream: Stream,
        mut from: impl Read + Send + 'static,
        echo: bool,
    ) -> std::io::Result<JoinHandle<()>> {
        let output = self.clone();
        let reader = thread::Builder::new().name(format!("output of rank {rank}"));
        reader.spawn(move || {
            let keep = |text: &[u8]| {
                let text = String::from_utf8_lossy(text).into_owned();
                let line = Line { rank, stream, text };
                if echo {
                    eprintln!("{line}");
                }
                output
                    .0
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line);
            };
            let (mut pending, mut kept) = (Vec::new(), 0);
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut chunk) {
                for &byte in &chunk[..length] {
                    if byte != b'\n' {
                        pending.push(byte);
                    }
                    if byte == b'\n' || pending.len() == MAX_LINE {
                        if kept <= MAX_KEPT {
                            kept += pending.len() + 1;
                            let cut = &b"(the rest was dropped)"[..];
                            keep(if kept > MAX_KEPT { cut } else { &pending });
                        }
                        pending.clear();
                    }
                }
            }
            if !pending.is_empty() && kept <= MAX_KEPT {
                keep(&pending);
            }
        })
    }

    pub(super) fn take(&self) -> Vec<Line> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &'static [u8]) -> Vec<String> {
        let output = Output::default();
        let reading = output.collect(Rank(3), Stream::Stdout, bytes, false);
        reading.unwrap().join().unwrap();
        output.take().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lines_carry_their_rank_and_the_last_needs_no_end() {
        assert_eq!(
            lines(b"a\n\nb\xFF"),
            ["[rank 3] a", "[rank 3] ", "[rank 3] b\u{FFFD}"]
        );
        assert!(lines(b"").is_empty());
    }

    #[test]
    fn floods_are_cut() {
        static FLOOD: [u8; 6 << 20] = [b'x'; 6 << 20];
        let lines = lines(&FLOOD);
        assert!(lines.len() <= (MAX_KEPT / MAX_LINE) + 1);
        assert!(lines.last().unwrap().ends_with("(the rest was dropped)"));
    }
}
