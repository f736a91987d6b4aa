//! The command line.

use std::path::PathBuf;

use clap::Parser;
use collectives_alloc::bytes::ByteSize;
use collectives_core::dtype::DType;

/// Replays recorded requests with every scratch policy, and recommends a configuration.
#[derive(Debug, Parser)]
#[command(name = "advisor")]
pub(crate) struct Options {
    /// What `Recorded` wrote, or a CSV file with a column `bytes`, or `tokens`; optionally with a
    /// column `kind`, `prefill` or `decode`, of which the latter are captured. Or a published trace:
    /// Azure's or BurstGPT's CSV, Mooncake's lines of JSON.
    pub(crate) trace: PathBuf,

    /// Elements of a token, for a file with a column `tokens`.
    #[arg(long, default_value_t = 5120)]
    pub(crate) hidden: usize,

    /// The type of these elements.
    #[arg(long, default_value = "bf16")]
    pub(crate) dtype: DType,

    /// Bytes that the device maps in multiples of.
    #[arg(long, default_value = "2MiB")]
    pub(crate) granule: ByteSize,

    /// The largest request that is staged at all, as the configuration will have it.
    #[arg(long)]
    pub(crate) cap: Option<ByteSize>,

    /// The lease that larger calls go through in pieces, as the configuration will have it.
    #[arg(long)]
    pub(crate) piece: Option<ByteSize>,

    /// Mapped bytes that may be kept, as the configuration will have it.
    #[arg(long)]
    pub(crate) limit: Option<ByteSize>,

    /// The backend cannot map memory at two addresses, so that there is no `arena`.
    #[arg(long)]
    pub(crate) no_aliasing: bool,

    /// Draws what each policy keeps after each request into this SVG file.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,

    /// Writes the recommended configuration into this file, too.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) output: Option<PathBuf>,
}
