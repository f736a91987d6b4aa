//! Where each value came from, so that an error can say so.

use std::collections::BTreeMap;
use std::fmt;

use super::keys::Key;
use crate::env;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Some serde format that did not say more.
    Document,
    /// A TOML text.
    Toml,
    /// A file, by its path.
    File(String),
    /// The environment variable of the key.
    Environment,
}

impl Origin {
    /// The origin of a value of this key, in words.
    pub(crate) fn of(&self, key: Key) -> String {
        match self {
            Self::Environment => format!("environment variable {}", env::variable(key)),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Document => f.write_str("the configuration"),
            Self::Toml => f.write_str("the TOML text"),
            Self::File(path) => write!(f, "file `{path}`"),
            Self::Environment => f.write_str("the environment"),
        }
    }
}

/// The value and origin of each key that was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources(BTreeMap<Key, (String, Origin)>);

impl Sources {
    /// Notes that `key` was read from `origin`, which gave it `value`.
    pub(super) fn note(&mut self, key: Key, value: Option<String>, origin: Origin) {
        if let Some(value) = value {
            self.0.insert(key, (value, origin));
        }
    }

    /// Says more precisely where everything that came from a document came from.
    pub(super) fn rename_document(&mut self, origin: &Origin) {
        for (_, from) in self.0.values_mut() {
            if *from == Origin::Document {
                *from = origin.clone();
            }
        }
    }

    /// Where `value` of `key` came from; if it is not what was read, code has changed it since.
    /// `None` while a document is being read, whose reader adds file and line.
    pub(super) fn of(&self, key: Key, value: &str) -> Option<String> {
        match self.0.get(&key) {
            Some((_, Origin::Document)) => None,
            Some((read, origin)) if read == value => Some(origin.of(key)),
            _ => Some("set in code".to_owned()),
        }
    }
}

/// Where a value came from does not make two configurations different.
impl PartialEq for Sources {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}
