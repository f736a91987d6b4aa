//! Reading the `[scratch]` table of a TOML document, and writing one.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use collectives_core::error::{Error, Result};

use super::ScratchConfig;
use super::source::Origin;
use crate::nearest;

/// The name of the table.
const TABLE: &str = "scratch";

#[derive(Deserialize)]
struct Document {
    scratch: Option<ScratchConfig>,
}

impl ScratchConfig {
    /// The `[scratch]` table of a TOML document; other tables are somebody else's.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](collectives_core::error::ErrorKind::Config) with line and column, also
    /// where there is no such table.
    pub fn from_toml(text: &str) -> Result<Self> {
        read(text, &Origin::Toml)
    }

    /// As [`ScratchConfig::from_toml`], from a file, which errors name.
    ///
    /// # Errors
    ///
    /// Those of [`ScratchConfig::from_toml`], and when the file cannot be read.
    pub fn from_toml_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let origin = Origin::File(path.display().to_string());
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::config(format!("{origin}: {error}")).caused_by(error))?;
        read(&text, &origin)
    }

    /// A document that [`ScratchConfig::from_toml`] reads back as the same configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](collectives_core::error::ErrorKind::Config) where TOML cannot hold a
    /// number.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(&BTreeMap::from([(TABLE, self)]))
            .map_err(|error| Error::config(error.to_string()).caused_by(error))
    }
}

fn read(text: &str, origin: &Origin) -> Result<ScratchConfig> {
    let document: Document = toml::from_str(text).map_err(|error| {
        let place = place(text, error.span().map(|span| span.start));
        let message = error.message().trim_end().replace('\n', ", ");
        Error::config(format!("{origin}{place}: {message}")).caused_by(error)
    })?;
    let mut config = document.scratch.ok_or_else(|| no_table(text, origin))?;
    config.sources.rename_document(origin);
    Ok(config)
}

/// `, line …, column …`, counted from one, in characters.
fn place(text: &str, at: Option<usize>) -> String {
    let Some(before) = at.and_then(|at| text.get(..at)) else {
        return String::new();
    };
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
    format!(", line {line}, column {column}")
}

fn no_table(text: &str, origin: &Origin) -> Error {
    let table: toml::Table = toml::from_str(text).unwrap_or_default();
    let near = nearest::nearest(TABLE, table.keys().map(String::as_str));
    let hint = near.map_or(String::new(), |name| {
        format!("; is `{name}` meant to be it?")
    });
    Error::config(format!("{origin}: there is no table `[{TABLE}]`{hint}"))
}
