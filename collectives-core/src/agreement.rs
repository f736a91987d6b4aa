//! Records that ranks exchange on the slow path, and the verdict over them.
//!
//! The verdict is a pure function of the exchanged records, so that every rank comes to the same:
//! either all succeed, or all get the same [`ErrorKind::Mismatch`].

use std::borrow::Cow;
use std::fmt;

use crate::error::{Error, ErrorKind, Field, Misuse, Result};
use crate::rank::Rank;

/// What one rank says in an agreement round: fields that must be equal on all ranks, and facts of
/// its own, which need not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    fields: Vec<(Field, Value)>,
    facts: Vec<u64>,
}

/// What must be equal, as an error shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Number(u64),
    Name(Cow<'static, str>),
}

/// Every field in the order of its wire code.
const FIELDS: [Field; 19] = [
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
    Field::Kernel,
];

/// Marks the wire code of a field that has a name for a value.
const NAMED: u8 = 0x80;

impl Record {
    /// A record that says nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value that must be equal on all ranks.
    #[must_use]
    pub fn field(mut self, field: Field, value: u64) -> Self {
        self.fields.push((field, Value::Number(value)));
        self
    }

    /// Adds a name that must be equal on all ranks: that of a call, for example. A mismatch shows it.
    /// Of a longer one, the first 255 bytes count.
    #[must_use]
    pub fn named(mut self, field: Field, name: impl Into<Cow<'static, str>>) -> Self {
        let name = match name.into() {
            Cow::Borrowed(name) => beginning(name, u8::MAX.into()).into(),
            Cow::Owned(name) => beginning(&name, u8::MAX.into()).to_owned().into(),
        };
        self.fields.push((field, Value::Name(name)));
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
        for (field, value) in &self.fields {
            let code = FIELDS
                .iter()
                .position(|f| f == field)
                .unwrap_or(FIELDS.len());
            let code = u8::try_from(code).unwrap_or(u8::MAX);
            match value {
                Value::Number(number) => {
                    bytes.push(code);
                    bytes.extend(number.to_le_bytes());
                }
                Value::Name(name) => {
                    bytes.push(code | NAMED);
                    bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
                    bytes.extend(name.as_bytes());
                }
            }
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
            let field = *FIELDS.get(usize::from(code & !NAMED)).ok_or_else(garbage)?;
            let (value, tail) = match code & NAMED {
                0 => {
                    let (number, tail) = tail.split_first_chunk::<8>().ok_or_else(garbage)?;
                    (Value::Number(u64::from_le_bytes(*number)), tail)
                }
                _ => {
                    let (&length, tail) = tail.split_first().ok_or_else(garbage)?;
                    let split = tail.split_at_checked(length.into());
                    let (name, tail) = split.ok_or_else(garbage)?;
                    let name = String::from_utf8(name.to_vec()).map_err(|_| garbage())?;
                    (Value::Name(name.into()), tail)
                }
            };
            record.fields.push((field, value));
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
    /// the majority; of equal groups, the one with the lowest rank counts as the majority. Of
    /// operations that differ it says element type and reduction, too. Where ranks say different
    /// things at all, it names their operations.
    pub fn check_equal(records: &[Self]) -> Result<()> {
        let longest = records.iter().map(|r| r.fields.len()).max().unwrap_or(0);
        for position in 0..longest {
            let at: Vec<_> = records.iter().map(|r| r.fields.get(position)).collect();
            let fields: Vec<_> = at.iter().map(|at| at.map(|(field, _)| *field)).collect();
            // A name and a number of the same field are said by different kinds of calls, too.
            let is_name = |value: &Value| matches!(value, Value::Name(_));
            let shapes = at
                .iter()
                .map(|at| at.map(|(field, value)| (*field, is_name(value))));
            if let Some((odd, usual)) = odd_one_out(&shapes.collect::<Vec<_>>()) {
                return Err(Self::different_calls(records, &fields, (odd, usual)));
            }
            if let (Some((odd, usual)), Some(field)) = (odd_one_out(&at), fields[0]) {
                let show = |index: usize| records[index].show(position);
                return Err(mismatch(odd, field, show(odd), show(usual)));
            }
        }
        Ok(())
    }

    /// The error where records say different things at a position: by their operations, if those differ.
    fn different_calls(
        records: &[Self],
        fields: &[Option<Field>],
        (odd, usual): (usize, usize),
    ) -> Error {
        let calls: Vec<_> = records.iter().map(Self::call).collect();
        if let Some((odd, usual)) = odd_one_out(&calls) {
            let show = |index: usize| calls[index].clone();
            let show = |index| show(index).unwrap_or_else(|| "another call".to_owned());
            return mismatch(odd, Field::Operation, show(odd), show(usual));
        }
        let show = |index: usize| match fields[index] {
            Some(field) => format!("a call that compares {field} here"),
            None => "a call that compares nothing here".to_owned(),
        };
        let field = fields[usual].or(fields[odd]);
        let field = field.unwrap_or(Field::RecordLength);
        mismatch(odd, field, show(odd), show(usual))
    }

    /// The first operation it names, with the names of its reduction and element type; without one, the
    /// name of the call that stands for the order.
    #[must_use]
    pub fn call(&self) -> Option<String> {
        let first = |wanted| {
            let is_wanted = |(field, value): &(Field, Value)| {
                *field == wanted && (wanted == Field::Operation || matches!(value, Value::Name(_)))
            };
            self.fields.iter().position(is_wanted)
        };
        let position = first(Field::Operation).or_else(|| first(Field::Order))?;
        Some(self.show(position))
    }

    /// The value at a position; of an operation with the names of its reduction and element type.
    fn show(&self, position: usize) -> String {
        let Some(((field, value), rest)) = self.fields[position..].split_first() else {
            return String::new();
        };
        let mut text = value.to_string();
        if *field == Field::Operation {
            let own = rest
                .iter()
                .take_while(|(field, _)| *field != Field::Operation);
            let named = |wanted| {
                let mut own = own.clone();
                own.find_map(|(field, value)| match value {
                    Value::Name(name) if *field == wanted => Some(format!(" {name}")),
                    _ => None,
                })
            };
            text.extend(
                [Field::Reduction, Field::DType]
                    .into_iter()
                    .filter_map(named),
            );
        }
        text
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// As many whole characters as take at most this many bytes.
pub(crate) fn beginning(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
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

    #[test]
    fn a_name_and_a_number_of_one_field_are_different_calls() {
        let numbered = Record::new()
            .field(Field::Order, 0)
            .named(Field::Operation, "a miss of acquire");
        for (record, name) in [
            (Record::new().named(Field::Order, "register"), "register"),
            (
                Record::new()
                    .named(Field::Order, "enqueue")
                    .named(Field::Operation, "a call that its own checks refuse"),
                "a call that its own checks refuse",
            ),
        ] {
            let error = Record::check_equal(&[numbered.clone(), record]).unwrap_err();
            let expected = (
                Rank(1),
                Field::Operation,
                name.to_owned(),
                "a miss of acquire".to_owned(),
            );
            assert_eq!(said(error), expected);
        }
    }

    fn said(error: Error) -> (Rank, Field, String, String) {
        match error.kind().clone() {
            ErrorKind::Mismatch {
                rank,
                field,
                theirs,
                ours,
            } => (rank, field, theirs, ours),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn operations_that_differ_are_told_by_their_names() {
        let reduces = |dtype| {
            Record::new()
                .named(Field::Operation, "all_reduce")
                .named(Field::DType, dtype)
                .named(Field::Reduction, "sum")
        };
        let gathers = Record::new()
            .named(Field::Operation, "all_gather")
            .named(Field::DType, "f32");
        let error = Record::check_equal(&[reduces("f32"), gathers]).unwrap_err();
        let (theirs, ours) = ("all_gather f32".to_owned(), "all_reduce sum f32".to_owned());
        assert_eq!(said(error), (Rank(1), Field::Operation, theirs, ours));
        let error = Record::check_equal(&[reduces("f32"), reduces("f16")]).unwrap_err();
        let (theirs, ours) = ("f16".to_owned(), "f32".to_owned());
        assert_eq!(said(error), (Rank(1), Field::DType, theirs, ours));
    }

    #[test]
    fn records_that_say_different_things_are_told_by_their_operations() {
        let scratch = Record::new()
            .field(Field::Configuration, 5)
            .named(Field::Operation, "reserve");
        let buffer = Record::new().named(Field::Operation, "symmetric_buffer");
        let error = Record::check_equal(&[scratch.clone(), buffer, scratch.clone()]).unwrap_err();
        let (theirs, ours) = ("symmetric_buffer".to_owned(), "reserve".to_owned());
        assert_eq!(said(error), (Rank(1), Field::Operation, theirs, ours));
        let (rank, field, theirs, _) =
            said(Record::check_equal(&[scratch, Record::new()]).unwrap_err());
        let expected = (Rank(1), Field::Operation, "another call");
        assert_eq!((rank, field, theirs.as_str()), expected);
        let longer = Record::new().field(Field::Bytes, 1).field(Field::Slots, 1);
        let shorter = Record::new().field(Field::Bytes, 1);
        let (rank, field, ..) = said(Record::check_equal(&[longer, shorter]).unwrap_err());
        assert_eq!((rank, field), (Rank(1), Field::Slots));
    }

    const NAMES: [&str; 3] = ["", "all_reduce", "\u{e9}"];

    proptest! {
        #[test]
        fn records_survive_the_wire(
            fields in prop::collection::vec((0..FIELDS.len(), any::<u64>()), 0..8),
            names in prop::collection::vec((0..FIELDS.len(), 0..NAMES.len()), 0..3),
            facts in prop::collection::vec(any::<u64>(), 0..8),
        ) {
            let mut record = Record::new();
            for (code, value) in fields {
                record = record.field(FIELDS[code], value);
            }
            for (code, name) in names {
                record = record.named(FIELDS[code], NAMES[name]);
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
