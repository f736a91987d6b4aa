//! Who belongs to which child of a split: what every backend decides alike from one agreement.

use crate::agreement::Record;
use crate::rank::Rank;

/// What a rank says in the agreement round of a split.
#[must_use]
pub fn record(color: Option<u32>, key: u32) -> Record {
    Record::new().fact(coded(color)).fact(u64::from(key))
}

/// The ranks that asked for this color, ordered by their key, then by rank.
#[must_use]
pub fn members(records: &[Record], color: u32) -> Vec<Rank> {
    let wanted = coded(Some(color));
    let mut members: Vec<_> = records
        .iter()
        .enumerate()
        .filter_map(|(rank, record)| match record.facts() {
            [theirs, key] if *theirs == wanted => Some((*key, Rank::new(rank))),
            _ => None,
        })
        .collect();
    members.sort_unstable();
    members.into_iter().map(|(_, rank)| rank).collect()
}

/// Zero for a rank that is in no child.
fn coded(color: Option<u32>) -> u64 {
    color.map_or(0, |color| u64::from(color) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_ordered_by_key_then_rank_and_those_without_color_are_in_none() {
        let records = [
            record(Some(0), 5),
            record(None, 0),
            record(Some(0), 1),
            record(Some(u32::MAX), 0),
            record(Some(0), 1),
        ];
        assert_eq!(members(&records, 0), [Rank(2), Rank(4), Rank(0)]);
        assert_eq!(members(&records, u32::MAX), [Rank(3)]);
        assert!(members(&records, 1).is_empty());
    }
}
