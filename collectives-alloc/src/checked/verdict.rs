//! What the records of all ranks come to, the same on every rank.

use collectives_core::agreement::{Record, mismatch, odd_one_out};
use collectives_core::collective::OpKind;
use collectives_core::error::{Error, ErrorKind, Field, Result};

use super::call::{FIRST_WINDOW, Kind, Mine, NOWHERE, ORDINARY, WORDS_PER_OPERAND};

impl Mine<'_> {
    /// Whether all ranks make the same call: a pure function of the records.
    pub(super) fn verdict(&self, records: &[Record]) -> Result<()> {
        Record::check_equal(records).map_err(in_words)?;
        // Equal fields make records equally long.
        let lengths: Vec<_> = records.iter().map(|record| record.facts().len()).collect();
        if let Some((odd, usual)) = odd_one_out(&lengths) {
            let words = |index: usize| format!("{} words", lengths[index]);
            return Err(mismatch(odd, Field::RecordLength, words(odd), words(usual)));
        }
        let Kind::Enqueue { calls, .. } = self.kind else {
            return Ok(());
        };
        let mut at = 0;
        for op in calls {
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
}

/// A mismatch of counts vectors, of which digests were compared.
fn in_words(error: Error) -> Error {
    let ErrorKind::Mismatch {
        rank,
        field: Field::Counts,
        theirs,
        ours,
    } = error.kind()
    else {
        return error;
    };
    let words = |digest: &String| format!("counts with digest {digest}");
    mismatch(rank.index(), Field::Counts, words(theirs), words(ours))
}

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
