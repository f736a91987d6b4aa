//! Raw NCCL, found at run time.
//!
//! * Nothing is linked. [`nccl`] looks the library up once: a `libnccl.so.2` that the process has
//!   loaded already (one with PyTorch has), then the file that `COLLECTIVES_NCCL_LIB` names, then
//!   `libnccl.so.2` and `libnccl.so` on the search path.
//! * Every symbol is optional. Calling one that the library lacks is [`Error::MissingSymbol`], with
//!   its name and the library's version. Nothing here panics, and the library is never unloaded.
//! * Codes, element types and reductions are transparent integers, because a newer library may
//!   return values that this crate has no name for.
//! * [`Config`] is the layout of NCCL 2.27, which every version from 2.27 to 2.32 reads rightly.
//!
//! Names are those of `nccl.h` without the prefix, in Rust's spelling.

mod config;
mod error;
mod load;
mod symbols;
mod types;
mod version;

pub use config::{CollConfig, Config};
pub use error::Error;
pub use load::{LIBRARY_VARIABLE, nccl};
pub use symbols::{Nccl, Symbols};
pub use types::{
    Code, Comm, DataType, RedOp, ScalarResidence, Stream, Team, UniqueId, Window, WindowFlags,
};
pub use version::Version;
