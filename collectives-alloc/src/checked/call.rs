//! What a rank says of its call: a record whose layout depends only on the fields in it.

use collectives_core::addr::{Operand, WindowId};
use collectives_core::agreement::Record;
use collectives_core::collective::{Collective, Counts, Op, OpKind};
use collectives_core::communicator::CommInfo;
use collectives_core::error::Field;
use collectives_core::rank::Rank;
use collectives_core::submission::KernelChoice;

use crate::digest::Digest;

/// A collective call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind<'a> {
    Enqueue {
        calls: &'a [Collective<'a>],
        captures: bool,
        kernel: KernelChoice,
    },
    /// One that this rank's own checks refuse.
    Refused,
    Register {
        bytes: usize,
    },
    Retire {
        window: WindowId,
    },
}

/// This rank's call.
#[derive(Debug)]
pub(super) struct Mine<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) world_size: usize,
    rank: Rank,
}

/// The place of an operand, as two words: which window, and where in it.
pub(super) const WORDS_PER_OPERAND: usize = 2;
/// The operand has no bytes, so its place does not matter.
pub(super) const NOWHERE: u64 = 0;
/// The operand lies in ordinary memory.
pub(super) const ORDINARY: u64 = 1;
/// The operand lies in window 0; the others follow.
pub(super) const FIRST_WINDOW: u64 = 2;

impl<'a> Mine<'a> {
    pub(super) fn of(kind: Kind<'a>, info: &CommInfo) -> Self {
        Self {
            kind,
            world_size: info.world_size,
            rank: info.rank,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            Kind::Enqueue { .. } | Kind::Refused => "enqueue",
            Kind::Register { .. } => "register",
            Kind::Retire { .. } => "retire",
        }
    }

    /// What is exchanged. The first field says which call it is, so that no two calls are taken
    /// for each other; of one that is enqueued, the second says whether it may be.
    pub(super) fn record(&self) -> Record {
        let record = Record::new().named(Field::Order, self.name());
        match self.kind {
            Kind::Register { bytes } => record.field(Field::Bytes, bytes as u64),
            Kind::Retire { window } => record.field(Field::Window, window.0),
            Kind::Refused => record.named(Field::Operation, "a call that its own checks refuse"),
            Kind::Enqueue {
                calls,
                captures,
                kernel,
            } => {
                let capture = match captures {
                    true => "capturing",
                    false => "not capturing",
                };
                let kernel = match kernel {
                    KernelChoice::Any => "any",
                    KernelChoice::Symmetric => "symmetric ones",
                    _ => "others",
                };
                let record = record
                    .named(Field::Operation, "a valid call")
                    .field(Field::GroupLength, calls.len() as u64)
                    .named(Field::Capture, capture)
                    .named(Field::Kernel, kernel);
                calls.iter().fold(record, |record, call| {
                    let record = arguments(record, call);
                    self.local(call).into_iter().fold(record, Record::fact)
                })
            }
        }
    }

    /// The arguments that may differ between ranks, always as many words for one operation: two
    /// places, then for all-to-all what is sent to and expected from every rank.
    fn local(&self, op: &Collective<'_>) -> Vec<u64> {
        let part = match op.kind() {
            OpKind::AllGather | OpKind::Gather => Some(Side::Send),
            OpKind::ReduceScatter | OpKind::Scatter => Some(Side::Recv),
            _ => None,
        };
        // The part of an operand that is in place lies as far into it as the ranks before need.
        let is_in_place = op.is_in_place(self.rank);
        let before = |side| {
            if is_in_place && part == Some(side) {
                op.counts.before(self.rank).saturating_mul(op.dtype.size())
            } else {
                0
            }
        };
        let mut words = Vec::new();
        words.extend(place(op.send, before(Side::Send)));
        words.extend(place(op.recv, before(Side::Recv)));
        if let Op::AllToAll { recv_counts } = op.op {
            let ranks = || (0..self.world_size).map(Rank::new);
            words.extend(ranks().map(|rank| op.counts.of(rank) as u64));
            words.extend(ranks().map(|rank| recv_counts.of(rank) as u64));
        }
        words
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Send,
    Recv,
}

/// The arguments that every rank passes alike. Their number follows from the operation, which comes
/// first.
fn arguments(record: Record, op: &Collective<'_>) -> Record {
    let mut record = record.named(Field::Operation, op.kind().name());
    if op.kind() == OpKind::Barrier {
        return record;
    }
    record = record.named(Field::DType, op.dtype.name());
    if let Some(reduction) = op.reduction() {
        record = record.named(Field::Reduction, reduction.name());
    }
    if let Some(root) = op.root() {
        record = record.field(Field::Root, root.0.into());
    }
    if op.kind() == OpKind::AllToAll {
        // Its counts are this rank's own.
        return record;
    }
    match op.counts {
        Counts::Even(count) => record.field(Field::Count, count as u64),
        Counts::Uneven([count, rest @ ..]) if rest.iter().all(|other| other == count) => {
            // The same as an even count, which another rank may have passed.
            record.field(Field::Count, *count as u64)
        }
        Counts::Uneven(counts) => {
            let start = Digest::new().size(counts.len());
            let digest = counts
                .iter()
                .fold(start, |digest, &count| digest.size(count));
            record.field(Field::Counts, digest.finish())
        }
        // A kind of counts this crate does not know is not compared.
        _ => record,
    }
}

fn place(operand: Operand, before: usize) -> [u64; WORDS_PER_OPERAND] {
    match operand.window {
        _ if operand.bytes == 0 => [NOWHERE, 0],
        None => [ORDINARY, 0],
        Some(slice) => {
            let offset = slice.offset.wrapping_sub(before);
            [slice.window.0.saturating_add(FIRST_WINDOW), offset as u64]
        }
    }
}
