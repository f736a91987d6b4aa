//! Variables that are looked up by name, and everything that was wrong with them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::str::FromStr;

/// An environment. Faults are collected, so that one error names them all.
#[derive(Debug)]
pub(super) struct Vars {
    values: HashMap<OsString, OsString>,
    faults: Vec<String>,
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
            faults: Vec::new(),
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

    /// Notes what is wrong.
    pub(super) fn fault(&mut self, text: String) {
        self.faults.push(text);
    }

    /// Everything that is wrong.
    pub(super) fn faults(&self) -> Option<String> {
        (!self.faults.is_empty()).then(|| self.faults.join("; "))
    }
}
