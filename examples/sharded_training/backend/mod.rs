//! What the ranks are: one file for each backend, all of which train the same way.
//!
//! A backend starts as many ranks as the options say, gives each a communicator, has it
//! [`train`](crate::trainer::train), and returns what each rank saw, in rank order. Arithmetic that
//! is not collective runs on the host, whatever the backend.

mod host;

use std::error::Error;

use clap::ValueEnum;

use crate::options::Options;
use crate::outcome::Outcome;

/// What the training runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// The embedded backend: each rank is a thread.
    #[default]
    Host,
}

impl Backend {
    /// The name that reports show.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
        }
    }

    /// Trains on all ranks.
    pub(crate) fn run(self, options: &Options) -> Result<Vec<Outcome>, Box<dyn Error>> {
        match self {
            Self::Host => Ok(host::run(options)?),
        }
    }
}
