//! The command line, and how ranks get it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where ranks find the options, as JSON.
pub(crate) const SETTINGS: &str = "NCCL_FIGURES_SETTINGS";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Options {
    pub(crate) ranks: Vec<usize>,
    pub(crate) rounds: usize,
    /// Bytes.
    pub(crate) sizes: Vec<usize>,
    /// What is measured.
    pub(crate) parts: Vec<Part>,
    /// Whether `Auto` goes by what was measured just before, not by the table.
    pub(crate) calibrate: bool,
    pub(crate) json: Option<PathBuf>,
}

/// One kind of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Part {
    /// All-reduce of every size beside the same by hand, and windows.
    Calls,
    /// What growing scratch costs, by policy.
    Growth,
    /// All-gather and reduce-scatter of the units of a sharded model.
    Units,
}

impl Part {
    fn named(name: &str) -> Result<Self, String> {
        match name.trim() {
            "calls" => Ok(Self::Calls),
            "growth" => Ok(Self::Growth),
            "units" => Ok(Self::Units),
            other => Err(format!("`{other}` is no part: calls, growth and units are")),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ranks: vec![2],
            // At least 200, and a multiple of what balances nine variants.
            rounds: 216,
            sizes: vec![
                16,
                1 << 10,
                8 << 10,
                32 << 10,
                64 << 10,
                256 << 10,
                512 << 10,
                1 << 20,
                2 << 20,
                8 << 20,
                64 << 20,
            ],
            parts: vec![Part::Calls, Part::Growth, Part::Units],
            calibrate: false,
            json: None,
        }
    }
}

impl Options {
    pub(crate) fn from_args() -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} wants a value"));
            match arg.as_str() {
                "--ranks" => options.ranks = numbers(&value()?)?,
                "--sizes" => options.sizes = numbers(&value()?)?,
                "--rounds" => {
                    let all = numbers(&value()?)?;
                    options.rounds = *all.first().ok_or("--rounds wants a number")?;
                }
                "--parts" => {
                    options.parts = value()?
                        .split(',')
                        .map(Part::named)
                        .collect::<Result<_, _>>()?;
                }
                "--calibrate" => options.calibrate = true,
                "--json" => options.json = Some(value()?.into()),
                // Cargo passes it to every bench.
                "--bench" => {}
                other => return Err(format!("`{other}` is no option")),
            }
        }
        if options.rounds == 0
            || options
                .sizes
                .iter()
                .any(|&bytes| bytes < 16 || bytes % 16 > 0)
        {
            return Err("rounds count from 1, and sizes are multiples of 16".to_owned());
        }
        Ok(options)
    }

    pub(crate) fn from_settings() -> Result<Self, String> {
        let text = std::env::var(SETTINGS).map_err(|error| error.to_string())?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }
}

fn numbers(text: &str) -> Result<Vec<usize>, String> {
    let parse = |one: &str| {
        one.trim()
            .parse()
            .map_err(|_| format!("`{one}` is no number"))
    };
    text.split(',').map(parse).collect()
}
