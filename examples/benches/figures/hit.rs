//! The hot path of scratch: a lease on a slot that exists, and its end.

use collectives_alloc::config::ScratchConfig;
use collectives_core::communicator::Communicator;
use collectives_core::error::Result;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_core::stream::Stream;

const MIB: usize = 1 << 20;

/// What was reserved: three slots.
const RESERVED: [Request; 3] = [
    Request::new(MIB),
    Request::new(4 * MIB),
    Request::new(16 * MIB),
];

/// What is asked for in turn, so that no slot and no size is always the same.
const ASKED: [Request; 4] = [
    Request::new(10 << 10),
    Request::new(640 << 10),
    Request::new(3 * MIB),
    Request::new(9 * MIB),
];

/// A pool as configuration makes it by default, on a communicator, with slots that nobody claims.
///
/// Alone on its cache lines, because two that lie side by side on a stack are used by two threads.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Hits {
    comm: Box<dyn Communicator>,
    scratch: Box<dyn ScratchAllocator>,
    stream: Stream,
    turn: usize,
}

impl Hits {
    pub(crate) fn new(mut comm: Box<dyn Communicator>) -> Result<Self> {
        let mut scratch = ScratchConfig::default().build()?;
        scratch.reserve(&mut *comm, &RESERVED)?;
        let stream = comm.device().create_stream()?;
        Ok(Self {
            comm,
            scratch,
            stream,
            turn: 0,
        })
    }

    /// One lease and its end, with the order between streams; whether the stream captures is known.
    #[inline]
    pub(crate) fn hit(&mut self) -> Result<()> {
        self.turn = (self.turn + 1) % ASKED.len();
        let lease = self
            .scratch
            .acquire(&mut *self.comm, ASKED[self.turn], &self.stream, None)?;
        std::hint::black_box(&lease);
        self.scratch.release(lease)
    }

    /// Hits and registrations so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let stats = self.scratch.stats();
        (stats.hits, stats.registrations)
    }
}
