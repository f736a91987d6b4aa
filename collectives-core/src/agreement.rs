//! Records that ranks exchange on the slow path, and the verdict over them.
//!
//! The verdict is a pure function of the exchanged records, so that every rank comes to the same:
//! either all succeed, or all get the same [`ErrorKind::Mismatch`].

use crate::error::{Error, ErrorKind, Field, Misuse, Result};
use crate::rank::Rank;

/// What one rank says in an agreement round: fields that must be equal on all ranks, and facts of
/// its own, which need not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    fields: Vec<(Field, u64)>,
    facts: Vec<u64>,
}

/// Every field in the order of its wire code.
const FIELDS: [Field; 18] = [
    Field::Operation,
    Field::DType,
    Field::Reduction,
    Field::Count,
    Field::Counts,
    Field::Root,
    Field::Window,
    Field::Offset,
    Field::GroupLength,
    Field::Capture,
    Field::Configuration,
    Field::Order,
    Field::Slots,
    Field::Capacity,
    Field::Bytes,
    Field::Domain,
    Field::Version,
    Field::RecordLength,
];

impl Record {
    /// A record that says nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value that must be equal on all ranks.
    #[must_use]
    pub fn field(mut self, field: Field, value: u64) -> Self {
        self.fields.push((field, value));
        self
    }

    /// Adds a fact of this rank alone.
    #[must_use]
    pub fn fact(mut self, value: u64) -> Self {
        self.facts.push(value);
        self
    }

    /// This rank's facts, in the order they were added.
    #[must_use]
    pub fn facts(&self) -> &[u64] {
        &self.facts
    }

    /// The bytes a bootstrap carries: little endian, no padding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(4 + self.fields.len() * 9 + self.facts.len() * 8);
        let count = u32::try_from(self.fields.len()).unwrap_or(u32::MAX);
        bytes.extend(count.to_le_bytes());
        for &(field, value) in &self.fields {
            let code = FIELDS
                .iter()
                .position(|&f| f == field)
                .unwrap_or(FIELDS.len());
            bytes.push(u8::try_from(code).unwrap_or(u8::MAX));
            bytes.extend(value.to_le_bytes());
        }
        for fact in &self.facts {
            bytes.extend(fact.to_le_bytes());
        }
        bytes
    }

    /// The record in `bytes`.
    ///
    /// # Errors
    ///
    /// [`Misuse::Other`] when they are no record.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let garbage = || Error::from(Misuse::Other("an agreement record is garbled".to_owned()));
        let (count, mut rest) = bytes.split_first_chunk::<4>().ok_or_else(garbage)?;
        let mut record = Self::new();
        for _ in 0..u32::from_le_bytes(*count) {
            let (&code, tail) = rest.split_first().ok_or_else(garbage)?;
            let (value, tail) = tail.split_first_chunk::<8>().ok_or_else(garbage)?;
            let field = *FIELDS.get(usize::from(code)).ok_or_else(garbage)?;
            record.fields.push((field, u64::from_le_bytes(*value)));
            rest = tail;
        }
        let facts = rest.chunks_exact(8);
        if !facts.remainder().is_empty() {
            return Err(garbage());
        }
        for fact in facts {
            let fact = fact.try_into().map_err(|_| garbage())?;
            record.facts.push(u64::from_le_bytes(fact));
        }
        Ok(record)
    }

    /// Checks that the fields are equal on all ranks.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Mismatch`] for the first field that differs, naming the rank that is not with
    /// the majority; of equal groups, the one with the lowest rank counts as the majority.
    pub fn check_equal(records: &[Self]) -> Result<()> {
        let longest = records.iter().map(|r| r.fields.len()).max().unwrap_or(0);
        for position in 0..longest {
            let at = |record: &Self| record.fields.get(position).copied();
            let names: Vec<_> = records
                .iter()
                .map(|r| at(r).map(|(field, _)| field))
                .collect();
            if let Some((odd, usual)) = odd_one_out(&names) {
                let field = names[usual].or(names[odd]).unwrap_or(Field::RecordLength);
                let show = |index: usize| match names[index] {
                    Some(field) => format!("a call that compares {field} here"),
                    None => "a call that compares nothing here".to_owned(),
                };
                return Err(mismatch(odd, field, show(odd), show(usual)));
            }
            let values: Vec<_> = records
                .iter()
                .map(|r| at(r).map(|(_, value)| value))
                .collect();
            if let (Some((odd, usual)), Some(field)) = (odd_one_out(&values), names[0]) {
                let show = |index: usize| values[index].map_or(String::new(), |v| v.to_string());
                return Err(mismatch(odd, field, show(odd), show(usual)));
            }
        }
        Ok(())
    }
}

/// A [`ErrorKind::Mismatch`] that names the rank at `odd`.
#[must_use]
pub fn mismatch(
    odd: usize,
    field: Field,
    theirs: impl Into<String>,
    ours: impl Into<String>,
) -> Error {
    Error::new(ErrorKind::Mismatch {
        rank: Rank::new(odd),
        field,
        theirs: theirs.into(),
        ours: ours.into(),
    })
}

/// If the values are not all equal: the first index that is not with the majority, and the first
/// index of the majority. Of equally large groups the one with the lowest index is the majority.
#[must_use]
pub fn odd_one_out<T: PartialEq>(values: &[T]) -> Option<(usize, usize)> {
    let first = values.first()?;
    if values.iter().all(|value| value == first) {
        return None;
    }
    let votes = |candidate: &T| values.iter().filter(|value| *value == candidate).count();
    let (usual, _) = values
        .iter()
        .enumerate()
        .map(|(index, value)| (index, votes(value)))
        .reduce(|best, next| if next.1 > best.1 { next } else { best })?;
    let odd = values.iter().position(|value| *value != values[usual])?;
    Some((odd, usual))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_minority_is_named() {
        assert_eq!(odd_one_out(&[1, 1, 2, 1]), Some((2, 0)));
        assert_eq!(odd_one_out(&[2, 1, 1, 1]), Some((0, 1)));
        assert_eq!(odd_one_out(&[1, 2]), Some((1, 0)));
        assert_eq!(odd_one_out(&[7, 7]), None);
    }

    #[test]
    fn a_mismatch_names_rank_and_field() {
        let record = |bytes| {
            Record::new()
                .field(Field::Operation, 1)
                .field(Field::Bytes, bytes)
        };
        let error = Record::check_equal(&[record(8), record(8), record(9)]).unwrap_err();
        let ErrorKind::Mismatch { rank, field, .. } = error.kind() else {
            panic!("{error}");
        };
        assert_eq!((*rank, *field), (Rank(2), Field::Bytes));
    }

    proptest! {
        #[test]
        fn records_survive_the_wire(
            fields in prop::collection::vec((0..FIELDS.len(), any::<u64>()), 0..8),
            facts in prop::collection::vec(any::<u64>(), 0..8),
        ) {
            let mut record = Record::new();
            for (code, value) in fields {
                record = record.field(FIELDS[code], value);
            }
            for fact in facts {
                record = record.fact(fact);
            }
            prop_assert_eq!(Record::decode(&record.encode()).unwrap(), record);
        }

        #[test]
        fn garbage_is_refused_or_decoded_but_never_panics(bytes: Vec<u8>) {
            let _ = Record::decode(&bytes);
        }
    }
}
