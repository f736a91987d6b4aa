//! Vector clocks over the streams of one device: finds two uses of the same bytes without order.
//!
//! Every stream has a clock, and so has the host thread, which learns of a stream when it waits for
//! it. A fence carries the clock of its latest record; a captured graph carries the waits, records and
//! uses it was captured with, which happen on the stream it is launched on. Two uses of overlapping
//! bytes, one of them a write, must be ordered by these clocks; whether they happened to run one
//! after another is of no account.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use collectives_core::rank::{CaptureId, StreamId};

/// A use of bytes of some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Which memory; what is mapped at several addresses is one memory.
    pub memory: u64,
    /// Where in it the bytes begin.
    pub start: usize,
    /// Bytes.
    pub bytes: usize,
    /// Whether it writes.
    pub writes: bool,
}

impl Use {
    fn conflicts(&self, other: &Self) -> bool {
        (self.writes || other.writes)
            && self.memory == other.memory
            && self.start < other.start.saturating_add(other.bytes)
            && other.start < self.start.saturating_add(self.bytes)
    }

    /// Whether what conflicts with the other conflicts with this too.
    fn covers(&self, other: &Self) -> bool {
        (self.writes || !other.writes)
            && self.memory == other.memory
            && self.start <= other.start
            && self.start + self.bytes >= other.start + other.bytes
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.writes { "write" } else { "read" };
        write!(
            f,
            "a {what} of {} bytes at {} of memory #{}",
            self.bytes, self.start, self.memory
        )
    }
}

/// A step of a captured graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Use(Use),
    Wait(u64),
    Record(u64),
}

#[derive(Clone, Debug, Default)]
struct Clock(BTreeMap<StreamId, u64>);

impl Clock {
    fn merge(&mut self, other: &Self) {
        for (&stream, &time) in &other.0 {
            let mine = self.0.entry(stream).or_default();
            *mine = (*mine).max(time);
        }
    }

    fn at(&self, stream: StreamId) -> u64 {
        self.0.get(&stream).copied().unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Past {
    what: Use,
    stream: StreamId,
    time: u64,
}

/// The clocks of one device.
#[derive(Debug, Default)]
pub struct Clocks {
    host: Clock,
    streams: HashMap<StreamId, Clock>,
    fences: HashMap<u64, Clock>,
    captures: HashMap<CaptureId, Vec<Step>>,
    past: Vec<Past>,
    conflicts: Vec<String>,
}

impl Clocks {
    /// Conflicts found so far, in words.
    #[must_use]
    pub fn conflicts(&self) -> &[String] {
        &self.conflicts
    }

    /// What a stream knows, having learnt what the host does.
    fn know(&mut self, stream: StreamId) -> &mut Clock {
        let clock = self.streams.entry(stream).or_default();
        clock.merge(&self.host);
        clock
    }

    pub(crate) fn used(&mut self, stream: StreamId, capture: Option<CaptureId>, what: Use) {
        match capture {
            Some(capture) => self
                .captures
                .entry(capture)
                .or_default()
                .push(Step::Use(what)),
            None => self.happens(stream, what),
        }
    }

    fn happens(&mut self, stream: StreamId, what: Use) {
        let clock = self.know(stream);
        let time = clock.at(stream) + 1;
        clock.0.insert(stream, time);
        let clock = clock.clone();
        let before = |past: &Past| clock.at(past.stream) >= past.time;
        let unordered = self
            .past
            .iter()
            .find(|past| past.what.conflicts(&what) && !before(past));
        if let Some(past) = unordered {
            self.conflicts.push(format!(
                "{what} on stream {stream} is not ordered after {} on stream {}",
                past.what, past.stream
            ));
        }
        // What comes after this comes after what this covers.
        self.past
            .retain(|past| !(what.covers(&past.what) && before(past)));
        self.past.push(Past { what, stream, time });
    }

    /// The memory has gone, and nothing can use it any more.
    pub(crate) fn forget(&mut self, memory: u64) {
        self.past.retain(|past| past.what.memory != memory);
    }

    pub(crate) fn waits(&mut self, stream: StreamId, capture: Option<CaptureId>, fence: u64) {
        match capture {
            Some(capture) => self
                .captures
                .entry(capture)
                .or_default()
                .push(Step::Wait(fence)),
            None => {
                let recorded = self.fences.get(&fence).cloned().unwrap_or_default();
                self.know(stream).merge(&recorded);
            }
        }
    }

    pub(crate) fn records(&mut self, stream: StreamId, capture: Option<CaptureId>, fence: u64) {
        match capture {
            Some(capture) => self
                .captures
                .entry(capture)
                .or_default()
                .push(Step::Record(fence)),
            None => {
                let clock = self.know(stream).clone();
                self.fences.insert(fence, clock);
            }
        }
    }

    pub(crate) fn orders(&mut self, earlier: StreamId, later: StreamId) {
        let clock = self.know(earlier).clone();
        self.know(later).merge(&clock);
    }

    /// The host has seen the end of everything on the stream.
    pub(crate) fn host_waits(&mut self, stream: StreamId) {
        let clock = self.know(stream).clone();
        self.host.merge(&clock);
    }

    /// The steps of a child happen at its place in the parent.
    pub(crate) fn embeds(&mut self, capture: CaptureId, child: &[Step]) {
        self.captures.entry(capture).or_default().extend(child);
    }

    pub(crate) fn take_capture(&mut self, capture: CaptureId) -> Vec<Step> {
        self.captures.remove(&capture).unwrap_or_default()
    }

    pub(crate) fn replays(&mut self, stream: StreamId, steps: &[Step]) {
        for &step in steps {
            match step {
                Step::Use(what) => self.happens(stream, what),
                Step::Wait(fence) => self.waits(stream, None, fence),
                Step::Record(fence) => self.records(stream, None, fence),
            }
        }
    }
}

#[cfg(test)]
mod tests;
