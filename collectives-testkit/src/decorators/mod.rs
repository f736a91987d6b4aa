//! Hostile layers around any communicator, for the kit's cases and a backend author's own tests.

mod fail_at;
mod few_addresses;
mod null_windows;
mod perturbed;
mod skewed;
mod sorted;
mod undrained;
mod without_symmetric;

pub use fail_at::{Fail, FailAt, Point};
pub use few_addresses::FewAddresses;
pub use null_windows::NullWindows;
pub use perturbed::Perturbed;
pub use skewed::Skewed;
pub use sorted::Sorted;
pub use undrained::Undrained;
pub use without_symmetric::WithoutSymmetric;
