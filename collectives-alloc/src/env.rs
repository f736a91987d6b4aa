//! Configuration from the environment: `COLLECTIVES_SCRATCH_POLICY=geometric`.
//!
//! Every key of the `[scratch]` table has a variable: [`PREFIX`] and the key in capitals. A variable
//! with that prefix and no such key is refused.

use std::ffi::OsString;

use collectives_core::error::{Error, Result};

use crate::config::{Key, Origin, ScratchConfig};
use crate::nearest;

/// What the name of every variable begins with.
pub const PREFIX: &str = "COLLECTIVES_SCRATCH_";

impl ScratchConfig {
    /// The defaults, overridden by the environment.
    ///
    /// # Errors
    ///
    /// Those of [`ScratchConfig::overridden_by_env`].
    pub fn from_env() -> Result<Self> {
        Self::default().overridden_by_env()
    }

    /// The defaults, overridden by these variables instead of the environment.
    ///
    /// # Errors
    ///
    /// Those of [`ScratchConfig::overridden_by_env`].
    pub fn from_vars<N, V>(vars: impl IntoIterator<Item = (N, V)>) -> Result<Self>
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        Self::default().overridden_by_vars(vars)
    }

    /// This configuration, with every key that has an environment variable replaced by it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](collectives_core::error::ErrorKind::Config), naming the variable, for
    /// an unknown one, for a value that is not allowed, and for values that do not go together.
    pub fn overridden_by_env(self) -> Result<Self> {
        self.overridden_by_vars(std::env::vars_os())
    }

    /// As [`ScratchConfig::overridden_by_env`], with these variables instead of the environment.
    ///
    /// # Errors
    ///
    /// Those of [`ScratchConfig::overridden_by_env`].
    pub fn overridden_by_vars<N, V>(
        mut self,
        vars: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self>
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let mut ours: Vec<(OsString, OsString)> = vars
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .filter(|(name, _)| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
            .collect();
        // The environment has no order of its own, and the first error should be the same one.
        ours.sort();
        for (name, value) in ours {
            let name = name.to_string_lossy();
            let key = find(&name).map_err(Error::config)?;
            let refuse = |text| Error::config(format!("environment variable {name}: {text}"));
            let value = value
                .into_string()
                .map_err(|_| refuse("the value is not valid Unicode".to_owned()))?;
            self.assign(key, &value, Origin::Environment)
                .map_err(refuse)?;
        }
        self.validate()?;
        Ok(self)
    }
}

/// The variable of a key.
pub(crate) fn variable(key: Key) -> String {
    format!("{PREFIX}{}", key.name().to_uppercase())
}

fn find(name: &str) -> Result<Key, String> {
    let known = Key::ALL.into_iter().find(|&key| variable(key) == name);
    known.ok_or_else(|| {
        // Only what follows the prefix tells names apart.
        let tail = name.strip_prefix(PREFIX).unwrap_or(name);
        let hint = match nearest::nearest(tail, Key::ALL.map(Key::name)) {
            Some(near) => format!("did you mean {PREFIX}{}?", near.to_uppercase()),
            None => format!("known are {}", Key::ALL.map(variable).join(", ")),
        };
        format!(
            "unknown environment variable {}; {hint}",
            name.escape_debug()
        )
    })
}
