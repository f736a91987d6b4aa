//! The checks over a whole configuration.

use super::ScratchConfig;
use super::keys::Key;
use crate::bytes::ByteSize;

/// The keys that together say what `max_request` says.
const PARTS: [Key; 3] = [Key::MaxTokens, Key::Hidden, Key::DType];

impl ScratchConfig {
    /// Every value by the rule of its key, also those that code has set, then those that must go
    /// together.
    pub(super) fn check_all(&self) -> Result<(), String> {
        let mut scratchpad = self.clone();
        for key in Key::ALL {
            if let Some(value) = self.value(key) {
                let value = value.to_string();
                scratchpad
                    .assign(key, &value, super::Origin::Document)
                    .map_err(|text| match self.sources.of(key, &value) {
                        Some(origin) => format!("{origin}: {text}"),
                        None => text,
                    })?;
            }
        }
        self.check_growth()?;
        self.check_piece()?;
        self.bound().map(|_| ())
    }

    /// Without growth only `arena` keeps a bound; what a third party's policy does is its own affair.
    fn check_growth(&self) -> Result<(), String> {
        const GROWING: [&str; 5] = [
            "exact",
            "replace",
            "geometric",
            "geometric-class",
            "reserved",
        ];
        match self.growth {
            Some(growth) if growth <= 1.0 && GROWING.contains(&self.policy_name()) => Err(format!(
                "{}, but must be above 1 for the policy `{}`",
                self.describe(Key::Growth),
                self.policy_name()
            )),
            _ => Ok(()),
        }
    }

    /// A piece that may never be leased would leave every call that is split without scratch.
    fn check_piece(&self) -> Result<(), String> {
        for (key, most) in [(Key::Cap, self.cap), (Key::Limit, self.limit)] {
            if self.piece > most && most.is_some() {
                return Err(format!(
                    "{} and {}: a piece must not be larger",
                    self.describe(Key::Piece),
                    self.describe(key)
                ));
            }
        }
        Ok(())
    }

    /// The largest request from `max_request`, or from the three parts.
    pub(super) fn bound(&self) -> Result<Option<ByteSize>, String> {
        let (given, missing): (Vec<_>, Vec<_>) = PARTS
            .into_iter()
            .partition(|&key| self.value(key).is_some());
        let Some(&part) = given.first() else {
            return Ok(self.max_request);
        };
        if self.max_request.is_some() {
            return Err(format!(
                "{} and {}: give either `max_request`, or `max_tokens`, `hidden` and `dtype`",
                self.describe(Key::MaxRequest),
                self.describe(part)
            ));
        }
        let (Some(tokens), Some(hidden), Some(dtype)) = (self.max_tokens, self.hidden, self.dtype)
        else {
            let missing: Vec<_> = missing.iter().map(|k| format!("`{}`", k.name())).collect();
            return Err(format!(
                "{}, without {}: `max_tokens`, `hidden` and `dtype` go together",
                self.describe(part),
                missing.join(" and ")
            ));
        };
        let elements = tokens.checked_mul(hidden);
        match elements.and_then(|elements| dtype.bytes(elements).ok()) {
            Some(bytes) => Ok(Some(ByteSize::new(bytes))),
            None => Err(format!(
                "{}, {} and {}: that is more bytes than this machine can address",
                self.describe(Key::MaxTokens),
                self.describe(Key::Hidden),
                self.describe(Key::DType)
            )),
        }
    }

    /// Key, value and origin.
    pub(crate) fn describe(&self, key: Key) -> String {
        match self.value(key).map(|value| value.to_string()) {
            Some(value) => {
                let origin = self.sources.of(key, &value);
                let origin = origin.map_or(String::new(), |origin| format!(" ({origin})"));
                format!("`{}` is `{}`{origin}", key.name(), value.escape_debug())
            }
            None => format!("`{}` is not given", key.name()),
        }
    }
}
