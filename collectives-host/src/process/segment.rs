//! The memory that the ranks of one communicator share: words and blocks, all zeroes at first.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crossbeam_utils::CachePadded;

use crate::engine::Mapping;
use crate::standing::{Standing, Text};

/// What a rank says of an operation, and payload that fits beside it.
pub(super) const BOARD: usize = 64 << 10;
/// Operands in transit, one step of an operation.
pub(super) const STAGE: usize = 256 << 10;
/// Stages of a rank: one that peers read, one that is filled meanwhile, and one that a peer which is
/// behind may still read.
pub(super) const STAGES: usize = 3;
/// A message in transit.
pub(super) const PACKET: usize = 32 << 10;

/// What all ranks share.
#[repr(C)]
pub(super) struct Head {
    /// Changes when somebody who may sleep should look again.
    pub(super) bell: CachePadded<AtomicU32>,
    pub(super) sleepers: CachePadded<AtomicU32>,
    /// The last operation that somebody gave up on, or tried to.
    pub(super) judged: CachePadded<AtomicU64>,
    /// The last operation on which that is settled.
    pub(super) settled: AtomicU64,
}

/// Operations that somebody gave up on, of which what was found is kept for ranks that come late.
pub(super) const JUDGEMENTS: usize = 32;

/// What became of an operation that somebody gave up on. Behind it lie the absent ranks, one bit each.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Judgement {
    /// The operation, zero while the rest is written.
    pub(super) number: AtomicU64,
    /// How long was waited; [`u64::MAX`] if there was another reason.
    pub(super) waited: AtomicU64,
    /// What those who came asked for.
    pub(super) digest: AtomicU64,
    pub(super) words: Text,
}

/// One rank's words.
#[repr(C)]
pub(super) struct Berth {
    /// The last operation this rank has left.
    pub(super) left: CachePadded<AtomicU64>,
    /// Steps of operations this rank has come to.
    pub(super) step: CachePadded<AtomicU64>,
    /// Whether the rank shut the communicator down, and which way: [`Berth::LEFT`] or [`Berth::FAILED`].
    pub(super) gone: CachePadded<AtomicU32>,
    /// Where this rank is in its rounds.
    pub(super) standing: CachePadded<Standing>,
}

impl Berth {
    /// The rank left of its own accord.
    pub(super) const LEFT: u32 = 1;
    /// The rank left because the communicator had failed.
    pub(super) const FAILED: u32 = 2;
}

/// Messages from one rank to another.
#[repr(C)]
pub(super) struct Channel {
    /// Eight times the number of the letter, plus who has come to it.
    pub(super) state: CachePadded<AtomicU64>,
    /// How many have left it.
    pub(super) left: AtomicU32,
    /// What sender and receiver say of it: elements, bytes, element type.
    pub(super) says: [[AtomicU64; 3]; 2],
    /// Packets so far.
    pub(super) written: CachePadded<AtomicU64>,
    pub(super) read: CachePadded<AtomicU64>,
}

/// One rank's view of the segment.
pub(super) struct Segment {
    mapping: Mapping,
    layout: Layout,
    ranks: usize,
}

const PAGE: usize = 4096;

/// Where things begin; each begins at a page.
struct Layout {
    judgements: usize,
    berths: usize,
    channels: usize,
    boards: usize,
    stages: usize,
    packets: usize,
    bytes: usize,
}

impl Layout {
    fn of(ranks: usize) -> Self {
        let pages = |bytes: usize| bytes.next_multiple_of(PAGE);
        let judgements = pages(size_of::<Head>());
        let berths = judgements + pages(JUDGEMENTS * judgement(ranks));
        let channels = berths + pages(ranks * size_of::<Berth>());
        let boards = channels + pages(ranks * ranks * size_of::<Channel>());
        let stages = boards + ranks * 2 * BOARD;
        let packets = stages + ranks * STAGES * STAGE;
        Self {
            judgements,
            berths,
            channels,
            boards,
            stages,
            packets,
            bytes: packets + ranks * ranks * 2 * PACKET,
        }
    }
}

/// Bytes of a judgement on this many ranks.
fn judgement(ranks: usize) -> usize {
    size_of::<Judgement>() + ranks.div_ceil(64) * size_of::<AtomicU64>()
}

impl Segment {
    /// Bytes of a segment of this many ranks. Pages that nobody writes cost nothing.
    pub(super) fn bytes(ranks: usize) -> usize {
        Layout::of(ranks).bytes
    }

    pub(super) fn create(file: impl AsFd, ranks: usize) -> io::Result<Self> {
        Ok(Self::at(Mapping::new(file, Self::bytes(ranks))?, ranks))
    }

    pub(super) fn at(mapping: Mapping, ranks: usize) -> Self {
        Self {
            mapping,
            layout: Layout::of(ranks),
            ranks,
        }
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    fn place(&self, offset: usize) -> *mut u8 {
        self.mapping.start().offset(offset).as_ptr()
    }

    /// # Safety
    ///
    /// A `T` begins there, of atomics alone.
    unsafe fn words<T>(&self, offset: usize) -> &T {
        // SAFETY: By the caller; zeroes are a value of it, and everybody uses it as one.
        unsafe { &*self.place(offset).cast::<T>() }
    }

    pub(super) fn head(&self) -> &Head {
        // SAFETY: The segment begins with it.
        unsafe { self.words(0) }
    }

    /// Where the judgement on an operation is, or was, and the words with the absent ranks.
    pub(super) fn judgement(&self, number: u64) -> (&Judgement, &[AtomicU64]) {
        let turn = usize::try_from(number % JUDGEMENTS as u64).unwrap_or(0);
        let at = self.layout.judgements + turn * judgement(self.ranks);
        let behind = self.place(at + size_of::<Judgement>()).cast::<AtomicU64>();
        // SAFETY: There are so many judgements, one behind the other, each with its words.
        let words = unsafe { std::slice::from_raw_parts(behind, self.ranks.div_ceil(64)) };
        // SAFETY: As above.
        (unsafe { self.words(at) }, words)
    }

    pub(super) fn berth(&self, rank: usize) -> &Berth {
        let at = self.layout.berths + rank * size_of::<Berth>();
        debug_assert!(rank < self.ranks);
        // SAFETY: There is one for each rank.
        unsafe { self.words(at) }
    }

    pub(super) fn channel(&self, from: usize, to: usize) -> &Channel {
        let index = from * self.ranks + to;
        let at = self.layout.channels + index * size_of::<Channel>();
        // SAFETY: There is one for each pair.
        unsafe { self.words(at) }
    }

    /// How far a rank has come, by the operations with boards like this one's: twice the number of the
    /// last one, plus one if the rank did not arrive in it. It lies at the front of the board, so that
    /// what the rank says comes with it.
    pub(super) fn word(&self, rank: usize, parity: u64) -> &AtomicU64 {
        debug_assert!(rank < self.ranks);
        // SAFETY: A board begins with it, and nothing else is written there.
        unsafe { &*self.board(rank, parity).cast() }
    }

    /// One of a rank's two boards, of [`BOARD`] bytes, which it takes in turn: no rank is two operations
    /// ahead of another.
    pub(super) fn board(&self, rank: usize, parity: u64) -> *mut u8 {
        let index = rank * 2 + usize::from(parity & 1 == 1);
        self.place(self.layout.boards + index * BOARD)
    }

    /// One of a rank's [`STAGES`], of [`STAGE`] bytes, which it takes in turn.
    pub(super) fn stage(&self, rank: usize, step: u64) -> *mut u8 {
        let turn = usize::try_from(step % STAGES as u64).unwrap_or(0);
        self.place(self.layout.stages + (rank * STAGES + turn) * STAGE)
    }

    /// One of a channel's two packets, of [`PACKET`] bytes.
    pub(super) fn packet(&self, from: usize, to: usize, parity: u64) -> *mut u8 {
        let index = (from * self.ranks + to) * 2 + usize::from(parity & 1 == 1);
        self.place(self.layout.packets + index * PACKET)
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}
