//! What the records of all ranks come to, the same on every rank.

use collectives_core::agreement::{Record, mismatch, odd_one_out};
use collectives_core::collective::OpKind;
use collectives_core::dtype::DType;
use collectives_core::error::{Error, ErrorKind, Field, Result};

use super::call::{FIRST_WINDOW, KINDS, Kind, Mine, NOWHERE, ORDINARY, WORDS_PER_OPERAND};

impl Mine<'_> {
    /// Whether all ranks make the same call. A pure function of the records, except for the
    /// [`Misuse`](collectives_core::error::Misuse) of a call that all ranks know to be wrong.
    pub(super) fn verdict(&self, records: &[Record]) -> Result<()> {
        Record::check_equal(records).map_err(|error| self.in_words(error))?;
        // Equal fields make records equally long.
        let lengths: Vec<_> = records.iter().map(|record| record.facts().len()).collect();
        if let Some((odd, usual)) = odd_one_out(&lengths) {
            let words = |index: usize| format!("{} words", lengths[index]);
            return Err(mismatch(odd, Field::RecordLength, words(odd), words(usual)));
        }
        self.all_valid(records)?;
        let Kind::Enqueue { ops, .. } = self.kind else {
            return Ok(());
        };
        let mut at = 1;
        for op in ops {
            for side in ["send", "recv"] {
                same_place(records, at, side)?;
                at += WORDS_PER_OPERAND;
            }
            if op.kind() == OpKind::AllToAll {
                pairs_match(records, at, self.world_size)?;
                at += 2 * self.world_size;
            }
        }
        Ok(())
    }

    /// Whether no rank's own checks refuse the call.
    fn all_valid(&self, records: &[Record]) -> Result<()> {
        let valid: Vec<_> = records.iter().map(|record| word(record, 0) == 0).collect();
        let Some(invalid) = valid.iter().position(|valid| !valid) else {
            return Ok(());
        };
        if let Some(own) = &self.refusal
            && !valid.contains(&true)
        {
            return Err(Error::new(own.kind().clone()));
        }
        let (theirs, ours) = ("a call that its own checks refuse", "a valid call");
        let error = mismatch(invalid, Field::Operation, theirs, ours);
        Err(match &self.refusal {
            Some(own) => error.caused_by(own.to_string()),
            None => error,
        })
    }

    /// A mismatch with names in place of codes.
    fn in_words(&self, error: Error) -> Error {
        let ErrorKind::Mismatch {
            rank,
            field,
            theirs,
            ours,
        } = error.kind()
        else {
            return error;
        };
        let words = |value: &String| {
            let code = value.parse().ok();
            code.and_then(|code| name(*field, code))
                .unwrap_or_else(|| value.clone())
        };
        mismatch(rank.index(), *field, words(theirs), words(ours))
    }
}

/// The name behind a code, where there is one.
fn name(field: Field, code: u64) -> Option<String> {
    let index = usize::try_from(code).ok()?;
    let name = match field {
        Field::Order => KINDS.get(index)?,
        Field::Operation => OPERATIONS.iter().find(|op| **op as usize == index)?.name(),
        Field::DType => DType::ALL
            .iter()
            .find(|dtype| **dtype as usize == index)?
            .name(),
        Field::Reduction => REDUCTIONS.get(index)?,
        Field::Capture => ["not capturing", "capturing"].get(index)?,
        Field::Counts => return Some(format!("counts with digest {code:016x}")),
        _ => return None,
    };
    Some(name.to_owned())
}

const OPERATIONS: [OpKind; 11] = [
    OpKind::AllReduce,
    OpKind::ReduceScatter,
    OpKind::AllGather,
    OpKind::Broadcast,
    OpKind::Reduce,
    OpKind::AllToAll,
    OpKind::Gather,
    OpKind::Scatter,
    OpKind::Send,
    OpKind::Recv,
    OpKind::Barrier,
];

/// Names of reductions by [`ReduceOp::code`](collectives_core::reduce::ReduceOp::code).
const REDUCTIONS: [&str; 6] = ["sum", "product", "min", "max", "average", "premulsum"];

fn word(record: &Record, at: usize) -> u64 {
    record.facts().get(at).copied().unwrap_or(NOWHERE)
}

/// Whether the operand lies in the same place on all ranks on which it has bytes.
fn same_place(records: &[Record], at: usize, side: &str) -> Result<()> {
    let (ranks, places): (Vec<_>, Vec<_>) = records
        .iter()
        .enumerate()
        .map(|(rank, record)| (rank, (word(record, at), word(record, at + 1))))
        .filter(|(_, (window, _))| *window != NOWHERE)
        .unzip();
    let windows: Vec<_> = places.iter().map(|place| place.0).collect();
    if let Some((odd, usual)) = odd_one_out(&windows) {
        let words = |index: usize| match windows[index] {
            ORDINARY => format!("{side} in ordinary memory"),
            window => format!("{side} in window {}", window - FIRST_WINDOW),
        };
        return Err(mismatch(
            ranks[odd],
            Field::Window,
            words(odd),
            words(usual),
        ));
    }
    if let Some((odd, usual)) = odd_one_out(&places) {
        let words = |index: usize| format!("{side} at {}", places[index].1);
        return Err(mismatch(
            ranks[odd],
            Field::Offset,
            words(odd),
            words(usual),
        ));
    }
    Ok(())
}

/// Whether every rank expects from every other what that one sends.
fn pairs_match(records: &[Record], at: usize, world_size: usize) -> Result<()> {
    for (sender, sent) in records.iter().enumerate() {
        for (receiver, expected) in records.iter().enumerate() {
            let sends = word(sent, at + receiver);
            let expects = word(expected, at + world_size + sender);
            if sends != expects {
                let theirs = format!("{expects} elements from rank {sender}");
                let ours = format!("{sends} elements for it");
                return Err(mismatch(receiver, Field::Counts, theirs, ours));
            }
        }
    }
    Ok(())
}
