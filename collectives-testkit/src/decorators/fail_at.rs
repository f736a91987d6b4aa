//! Fails at the k-th call of a kind.

use std::time::Duration;

use collectives_core::addr::WindowId;
use collectives_core::agreement::Record;
use collectives_core::collective::Collective;
use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::layered::{Layer, symmetric_of};
use collectives_core::memory::Memory;
use collectives_core::stream::StreamRef;

/// Where to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Point {
    /// Before operations are enqueued.
    Enqueue,
    /// Before a record is exchanged.
    Agree,
    /// At an allocation of symmetric memory.
    Allocate,
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

    fn meet(&mut self, point: Point, inner: &dyn Communicator, bytes: usize) -> Result<()> {
        if point != self.point {
            return Ok(());
        }
        self.calls += 1;
        if self.calls < self.k || self.calls - self.k >= self.times {
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
        _ops: &[Collective<'_>],
        _stream: &StreamRef,
    ) -> Result<()> {
        self.meet(Point::Enqueue, inner, 0)
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

    fn for_child(&self) -> Self {
        Self::new(self.point, self.k, self.how).times(self.times)
    }
}
