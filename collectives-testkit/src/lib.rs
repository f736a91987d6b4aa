//! The conformance kit: what every backend must keep, and a proof that the kit would notice.
//!
//! A backend author writes a [`Harness`](harness::Harness) and one line in a test target with
//! `harness = false`:
//!
//! ```ignore
//! collectives_testkit::conformance_main!(MyBackend);
//! ```
//!
//! * Every [`Case`](case::Case) of every [suite](suites) is listed. What the backend does not claim is
//!   listed as skipped, with its reason, and fails when it is forced to run.
//! * Every case has a [planted bug](planted::Planted) that makes it fail; the [`matrix`] runs them.
//! * A [`Rig`](rig::Rig) is one rank in one case. Its [`Witness`](witness::Witness) sees operands and
//!   calls, and keeps vector [`clocks`].
//! * [`decorators`] are hostile layers for a backend author's own tests.
//! * [`launch`] starts ranks that are processes, and leaves nothing behind.
//!
//! | variable | meaning |
//! |---|---|
//! | `COLLECTIVES_REQUIRE=graphs,…` | these capabilities may not be missing: a skip is a failure |
//! | `COLLECTIVES_RANKS=8` | ranks of every case that does not need a certain number; 3 otherwise |
//! | `COLLECTIVES_CASE_SECONDS=30` | how long nothing may happen in a case; 60 otherwise |
//! | `COLLECTIVES_REPORT=DIR` | write a report of each backend there, in JSON and Markdown |

pub mod capability;
pub mod case;
mod claims;
pub mod clocks;
pub mod decorators;
pub mod harness;
pub mod inexact;
pub mod interpose;
#[cfg(target_os = "linux")]
pub mod launch;
pub mod matrix;
mod patience;
pub mod planted;
pub mod report;
pub mod rig;
pub mod runner;
pub mod suites;
pub mod values;
pub mod watchdog;
pub mod witness;
pub mod world;

/// The `main` of a conformance test: lists and runs every case on a [`Harness`](harness::Harness).
#[macro_export]
macro_rules! conformance_main {
    ($harness:expr) => {
        fn main() -> std::process::ExitCode {
            $crate::runner::main(std::sync::Arc::new($harness))
        }
    };
}
