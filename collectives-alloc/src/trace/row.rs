//! One line of a trace, taken apart.

use std::str::FromStr;

use collectives_core::error::{Error, Result};

use super::{Call, Event, HEADER, Outcome};
use crate::nearest;

/// The fields in their order.
#[derive(Clone, Copy)]
enum Field {
    Sequence,
    Call,
    Bytes,
    Stream,
    Capture,
    Outcome,
    Generation,
}

/// The fields of a line.
pub(super) struct Row<'a> {
    line: usize,
    fields: Vec<&'a str>,
}

const CALLS: [&str; 6] = ["acquire", "release", "reserve", "seal", "trim", "close"];

impl<'a> Row<'a> {
    /// Takes a line apart.
    pub(super) fn new(line: usize, text: &'a str) -> Result<Self> {
        let fields: Vec<_> = text.split(',').collect();
        let expected = HEADER.split(',').count();
        if fields.len() != expected {
            let column = text.chars().count() + 1;
            return Err(Error::config(format!(
                "trace, line {line}, column {column}: {} fields instead of {expected}",
                fields.len()
            )));
        }
        Ok(Self { line, fields })
    }

    /// What the line says.
    pub(super) fn event(&self) -> Result<Event> {
        use self::Field::{Bytes, Capture, Generation, Outcome as Became, Sequence, Stream};
        let sequence = self.number(Sequence)?;
        let call = match self.text(Field::Call) {
            "acquire" => {
                let outcome = self.outcome(Outcome::OF_ACQUIRE)?;
                if !outcome.is_leased() {
                    self.empty(&[Generation])?;
                }
                Call::Acquire {
                    bytes: self.size()?,
                    stream: self.number(Stream)?,
                    capture: self.maybe(Capture)?,
                    outcome,
                    generation: outcome
                        .is_leased()
                        .then(|| self.number(Generation))
                        .transpose()?,
                }
            }
            "reserve" => {
                self.empty(&[Stream, Capture, Generation])?;
                Call::Reserve {
                    bytes: self.number(Bytes)?,
                    outcome: self.outcome(Outcome::OF_OTHERS)?,
                }
            }
            "release" => {
                self.empty(&[Bytes, Stream, Capture, Became, Generation])?;
                Call::Release
            }
            "seal" => {
                self.empty(&[Bytes, Stream, Capture, Generation])?;
                self.outcome(&[Outcome::Done])?;
                Call::Seal
            }
            "trim" => {
                self.empty(&[Bytes, Stream, Capture, Generation])?;
                Call::Trim(self.outcome(Outcome::OF_OTHERS)?)
            }
            "close" => {
                self.empty(&[Bytes, Stream, Capture, Generation])?;
                Call::Close(self.outcome(Outcome::OF_OTHERS)?)
            }
            _ => return Err(self.unknown(Field::Call, &CALLS)),
        };
        Ok(Event::new(sequence, call))
    }

    fn text(&self, field: Field) -> &'a str {
        self.fields[field as usize]
    }

    fn number<T: FromStr>(&self, field: Field) -> Result<T> {
        let refuse = |_| self.error(field, "is no whole number, or too large");
        self.text(field).parse().map_err(refuse)
    }

    fn maybe<T: FromStr>(&self, field: Field) -> Result<Option<T>> {
        let given = !self.text(field).is_empty();
        given.then(|| self.number(field)).transpose()
    }

    fn size(&self) -> Result<usize> {
        match self.number(Field::Bytes)? {
            0 => Err(self.error(Field::Bytes, "must be more than zero")),
            bytes => Ok(bytes),
        }
    }

    fn outcome(&self, allowed: &[Outcome]) -> Result<Outcome> {
        let text = self.text(Field::Outcome);
        let found = allowed.iter().find(|outcome| outcome.name() == text);
        found.copied().ok_or_else(|| {
            let names: Vec<_> = allowed.iter().map(|outcome| outcome.name()).collect();
            self.unknown(Field::Outcome, &names)
        })
    }

    fn empty(&self, fields: &[Field]) -> Result<()> {
        match fields.iter().find(|field| !self.text(**field).is_empty()) {
            Some(field) => Err(self.error(*field, "must be empty for this call")),
            None => Ok(()),
        }
    }

    fn unknown(&self, field: Field, names: &[&str]) -> Error {
        let hint = nearest::hint(self.text(field), names.iter().copied());
        let one = if names.len() > 1 { "one of " } else { "" };
        self.error(field, &format!("must be {one}{}{hint}", names.join(", ")))
    }

    fn error(&self, field: Field, what: &str) -> Error {
        let index = field as usize;
        let before = self.fields[..index].iter();
        let column = before.map(|field| field.chars().count() + 1).sum::<usize>() + 1;
        let name = HEADER.split(',').nth(index).unwrap_or_default();
        let text = self.text(field).escape_debug();
        Error::config(format!(
            "trace, line {}, column {column}: `{name}` is `{text}`, which {what}",
            self.line
        ))
    }
}
