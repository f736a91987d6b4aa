//! Variables that are looked up by name, and everything that was wrong with them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::str::FromStr;

/// An environment. Faults are collected, so that one error names them all.
#[derive(Debug)]
pub(super) struct Vars {
    values: HashMap<OsString, OsString>,
    faults: Faults,
}

/// What was wrong with a launcher's variables.
#[derive(Debug, Default)]
pub(super) struct Faults {
    texts: Vec<String>,
    /// How many of them only say that a variable is not set.
    missing: usize,
}

impl Vars {
    pub(super) fn new<N, V>(vars: impl IntoIterator<Item = (N, V)>) -> Self
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let vars = vars.into_iter();
        Self {
            values: vars
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            faults: Faults::default(),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name.as_ref() as &std::ffi::OsStr)
    }

    /// The value of a variable that has to be there.
    pub(super) fn require<T: FromStr>(&mut self, name: &str, what: &str) -> Option<T>
    where
        T::Err: Display,
    {
        if !self.has(name) {
            self.fault(format!("{name} is not set"));
            self.faults.missing += 1;
        }
        self.optional(name, what)
    }

    /// The value of a variable, if it is set, as `what` it should be.
    pub(super) fn optional<T: FromStr>(&mut self, name: &str, what: &str) -> Option<T>
    where
        T::Err: Display,
    {
        let value = self.values.get(name.as_ref() as &std::ffi::OsStr)?;
        let text = value.to_string_lossy();
        match value.to_str().map(|text| text.trim().parse()) {
            Some(Ok(value)) => Some(value),
            Some(Err(error)) => {
                let fault = format!("{name}={} is not {what} ({error})", text.escape_debug());
                self.fault(fault);
                None
            }
            None => {
                let fault = format!("{name}={} is not valid Unicode", text.escape_debug());
                self.fault(fault);
                None
            }
        }
    }

    /// The value of a variable as it is written, for people.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let value = self.values.get(name.as_ref() as &std::ffi::OsStr)?;
        Some(value.to_string_lossy().escape_debug().to_string())
    }

    /// Notes what is wrong.
    pub(super) fn fault(&mut self, text: String) {
        self.faults.texts.push(text);
    }

    /// Everything that was wrong since this was last asked.
    pub(super) fn take_faults(&mut self) -> Faults {
        std::mem::take(&mut self.faults)
    }
}

impl Faults {
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Whether variables are missing, and nothing is wrong with those that are there.
    pub(super) fn are_gaps(&self) -> bool {
        self.missing == self.texts.len()
    }
}

impl Display for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.is_empty() {
            true => f.write_str("incomplete"),
            false => f.write_str(&self.texts.join("; ")),
        }
    }
}
