//! Hostile layers around any communicator, for the kit's cases and a backend author's own tests.

mod fail_at;
mod perturbed;
mod skewed;

pub use fail_at::{Fail, FailAt, Point};
pub use perturbed::Perturbed;
pub use skewed::Skewed;
