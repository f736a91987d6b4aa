//! The CUDA driver, found at run time: the only place that knows its functions.
//!
//! A missing library, a missing function and an unknown code are values, never panics.

mod capture_mode;
mod context;
mod error;
mod load;
mod sys;

pub(crate) use context::{Context, Current, CurrentRelaxed};
pub(crate) use error::driver_error;
pub(crate) use load::{Driver, driver};
pub(crate) use sys::*;
