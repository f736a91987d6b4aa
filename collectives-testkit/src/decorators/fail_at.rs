//! Fails at the k-th call of a kind.

use std::time::Duration;

use collectives_core::addr::WindowId;
use collectives_core::agreement::Record;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::layered::{Layer, symmetric_of};
use collectives_core::memory::Memory;
use collectives_core::rank::DeviceId;
use collectives_core::submission::Submission;

/// Where to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Point {
    /// Before operations are enqueued, with or without copies.
    Enqueue,
    /// Before a record is exchanged.
    Agree,
    /// At an allocation of symmetric memory.
    Allocate,
    /// At a registration. It is collective, so the error is the backend's: it is handed memory of another
    /// device, which it must refuse on all ranks. Only a panic is this layer's own.
    Register,
}

/// How to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fail {
    /// Out of memory.
    OutOfMemory,
    /// An error of the system.
    System,
    /// A panic.
    Panic,
}

/// Fails the `k`-th call at a point, counted from one, or several from there on, and passes all
/// others on.
#[derive(Clone, Copy, Debug)]
pub struct FailAt {
    point: Point,
    k: u64,
    how: Fail,
    times: u64,
    calls: u64,
}

impl FailAt {
    /// Fails the `k`-th call at `point`.
    #[must_use]
    pub const fn new(point: Point, k: u64, how: Fail) -> Self {
        Self {
            point,
            k,
            how,
            times: 1,
            calls: 0,
        }
    }

    /// Fails this many calls, one after another.
    #[must_use]
    pub const fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    fn is_due(&mut self, point: Point) -> bool {
        if point != self.point {
            return false;
        }
        self.calls += 1;
        self.calls >= self.k && self.calls - self.k < self.times
    }

    fn meet(&mut self, point: Point, inner: &dyn Communicator, bytes: usize) -> Result<()> {
        if !self.is_due(point) {
            return Ok(());
        }
        let rank = inner.info().rank;
        let kind = match self.how {
            Fail::OutOfMemory => ErrorKind::OutOfMemory { rank, bytes },
            Fail::System => ErrorKind::System("planned to fail here".to_owned()),
            Fail::Panic => panic!("planned to panic here"),
        };
        Err(Error::new(kind).on_rank(rank))
    }
}

impl Layer for FailAt {
    fn before_enqueue(
        &mut self,
        inner: &mut dyn Communicator,
        submission: &Submission<'_>,
    ) -> Result<()> {
        match submission.calls {
            [] => Ok(()),
            _ => self.meet(Point::Enqueue, inner, 0),
        }
    }

    fn agree(
        &mut self,
        inner: &mut dyn Communicator,
        mine: &Record,
        deadline: Duration,
    ) -> Result<Vec<Record>> {
        self.meet(Point::Agree, inner, 0)?;
        inner.agree(mine, deadline)
    }

    fn allocate(
        &mut self,
        inner: &mut dyn Communicator,
        bytes: usize,
        extend: Option<WindowId>,
    ) -> Result<Memory> {
        self.meet(Point::Allocate, inner, bytes)?;
        symmetric_of(inner)?.allocate(bytes, extend)
    }

    fn register(&mut self, inner: &mut dyn Communicator, memory: &Memory) -> Result<WindowId> {
        if !self.is_due(Point::Register) {
            return symmetric_of(inner)?.register(memory);
        }
        assert!(self.how != Fail::Panic, "planned to panic here");
        let foreign = Memory::token(DeviceId::fresh(), || {});
        symmetric_of(inner)?.register(&foreign)
    }

    fn for_child(&self) -> Self {
        Self::new(self.point, self.k, self.how).times(self.times)
    }
}
