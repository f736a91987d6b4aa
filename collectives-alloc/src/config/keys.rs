//! The keys: their names, what each allows, and how a value gets in and out.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use collectives_core::dtype::DType;
use collectives_core::scratch::SCRATCH_ALIGNMENT;

use super::ScratchConfig;
use super::choice::Choice;
use super::source::Origin;
use crate::bytes::{self, ByteSize};
use crate::nearest;
use crate::options::{DomainMode, OnMiss, Ordering, Seal};

/// A key of the `[scratch]` table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Policy,
    Growth,
    ClassesPerOctave,
    MaxRequest,
    MaxTokens,
    Hidden,
    DType,
    Cap,
    Piece,
    Limit,
    MaxWindows,
    Seal,
    OnMiss,
    Domain,
    Ordering,
    AgreeDeadline,
    Check,
}

impl Key {
    /// Every key, in the order a configuration is written.
    pub(crate) const ALL: [Self; 17] = [
        Self::Policy,
        Self::Growth,
        Self::ClassesPerOctave,
        Self::MaxRequest,
        Self::MaxTokens,
        Self::Hidden,
        Self::DType,
        Self::Cap,
        Self::Piece,
        Self::Limit,
        Self::MaxWindows,
        Self::Seal,
        Self::OnMiss,
        Self::Domain,
        Self::Ordering,
        Self::AgreeDeadline,
        Self::Check,
    ];

    /// The name in a file.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Growth => "growth",
            Self::ClassesPerOctave => "classes_per_octave",
            Self::MaxRequest => "max_request",
            Self::MaxTokens => "max_tokens",
            Self::Hidden => "hidden",
            Self::DType => "dtype",
            Self::Cap => "cap",
            Self::Piece => "piece",
            Self::Limit => "limit",
            Self::MaxWindows => "max_windows",
            Self::Seal => "seal",
            Self::OnMiss => "on_miss",
            Self::Domain => "domain",
            Self::Ordering => "ordering",
            Self::AgreeDeadline => "agree_deadline",
            Self::Check => "check",
        }
    }

    /// The key with this name, or a text that names the nearest.
    pub(super) fn find(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|key| key.name() == name);
        known.ok_or_else(|| {
            let hint = nearest::hint(name, Self::ALL.map(Self::name));
            let all = || format!("; known are {}", Self::ALL.map(Self::name).join(", "));
            let hint = if hint.is_empty() { all() } else { hint };
            format!("unknown key `{}`{hint}", name.escape_debug())
        })
    }

    /// What a value must be, in words.
    pub(super) fn allowed(self) -> String {
        match self {
            Self::Policy => "the name of a policy".to_owned(),
            Self::Growth => "a number greater than 1 and at most 4, or 1 with `arena`".to_owned(),
            Self::ClassesPerOctave => "a whole number from 1 to 16".to_owned(),
            Self::MaxTokens | Self::Hidden | Self::MaxWindows => {
                "a whole number greater than 0".to_owned()
            }
            Self::MaxRequest | Self::Cap | Self::Limit => {
                format!("greater than 0 and {}", bytes::ALLOWED)
            }
            Self::Piece => format!(
                "a multiple of {SCRATCH_ALIGNMENT} greater than 0 and {}",
                bytes::ALLOWED
            ),
            Self::AgreeDeadline => "a time greater than 0, with units (as in `300s`)".to_owned(),
            _ => format!("one of {}", self.names().join(", ")),
        }
    }

    /// The names of the values, where there are only a few.
    fn names(self) -> Vec<&'static str> {
        match self {
            Self::DType => DType::ALL.map(DType::name).to_vec(),
            Self::Seal => Seal::names(),
            Self::OnMiss => OnMiss::names(),
            Self::Domain => DomainMode::names(),
            Self::Ordering => Ordering::names(),
            Self::Check => bool::names(),
            _ => Vec::new(),
        }
    }
}

/// A value as a document holds it.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Value {
    Text(String),
    Integer(usize),
    Real(f64),
    Flag(bool),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Real(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

impl ScratchConfig {
    /// Sets one key, the same way for every origin; otherwise says what is allowed.
    pub(crate) fn assign(&mut self, key: Key, text: &str, origin: Origin) -> Result<(), String> {
        self.try_assign(key, text).ok_or_else(|| {
            let hint = nearest::hint(text, key.names());
            let (name, text, allowed) = (key.name(), text.escape_debug(), key.allowed());
            format!("`{name}` is `{text}`, but must be {allowed}{hint}")
        })?;
        let value = self.value(key).map(|value| value.to_string());
        self.sources.note(key, value, origin);
        Ok(())
    }

    fn try_assign(&mut self, key: Key, text: &str) -> Option<()> {
        let count = || text.parse().ok().filter(|&count: &usize| count > 0);
        let size = || text.parse().ok().filter(|size: &ByteSize| size.get() > 0);
        match key {
            Key::Policy => self.policy = Some(text.to_owned()).filter(|name| !name.is_empty()),
            Key::Growth => self.growth = text.parse().ok().filter(|g| (1.0..=4.0).contains(g)),
            Key::ClassesPerOctave => {
                self.classes_per_octave = text.parse().ok().filter(|k| (1..=16).contains(k));
            }
            Key::MaxRequest => self.max_request = size(),
            Key::MaxTokens => self.max_tokens = count(),
            Key::Hidden => self.hidden = count(),
            Key::DType => self.dtype = text.parse().ok(),
            Key::Cap => self.cap = size(),
            Key::Piece => {
                let whole = |size: &ByteSize| size.get().is_multiple_of(SCRATCH_ALIGNMENT);
                self.piece = size().filter(whole);
            }
            Key::Limit => self.limit = size(),
            Key::MaxWindows => self.max_windows = count(),
            Key::Seal => self.seal = Choice::named(text)?,
            Key::OnMiss => self.on_miss = Choice::named(text)?,
            Key::Domain => self.domain = Choice::named(text)?,
            Key::Ordering => self.ordering = Choice::named(text)?,
            Key::AgreeDeadline => self.agree_deadline = parse_deadline(text)?,
            Key::Check => self.check = Choice::named(text)?,
        }
        self.value(key).map(|_| ())
    }

    /// The value of a key, if it has one.
    pub(super) fn value(&self, key: Key) -> Option<Value> {
        let text = |text: &str| Some(Value::Text(text.to_owned()));
        let size = |size: Option<ByteSize>| size.map(|size| Value::Text(size.to_string()));
        match key {
            Key::Policy => self.policy.clone().map(Value::Text),
            Key::Growth => self.growth.map(Value::Real),
            Key::ClassesPerOctave => self.classes_per_octave.map(|k| Value::Integer(k as usize)),
            Key::MaxRequest => size(self.max_request),
            Key::MaxTokens => self.max_tokens.map(Value::Integer),
            Key::Hidden => self.hidden.map(Value::Integer),
            Key::DType => self.dtype.and_then(|dtype| text(dtype.name())),
            Key::Cap => size(self.cap),
            Key::Piece => size(self.piece),
            Key::Limit => size(self.limit),
            Key::MaxWindows => self.max_windows.map(Value::Integer),
            Key::Seal => text(self.seal.name()),
            Key::OnMiss => text(self.on_miss.name()),
            Key::Domain => text(self.domain.name()),
            Key::Ordering => text(self.ordering.name()),
            Key::AgreeDeadline => {
                text(&humantime::format_duration(self.agree_deadline).to_string())
            }
            Key::Check => Some(Value::Flag(self.check)),
        }
    }
}

/// A time with units; a bare number is refused, because it does not say of what.
fn parse_deadline(text: &str) -> Option<Duration> {
    humantime::parse_duration(text)
        .ok()
        .filter(|deadline| !deadline.is_zero())
}
