//! What a backend author writes to run the kit.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::communicator::Communicator;
use collectives_core::env::World;
use collectives_core::error::Result;
use collectives_core::memory::Memory;

use crate::capability::{Capability, Support};

/// How the kit starts ranks of a backend, and what the backend can do.
///
/// Everything else goes through the traits of `collectives-core`: buffers go up and down through
/// [`Buffer`](collectives_core::buffer::Buffer), captures through
/// [`Device::graphs`](collectives_core::device::Device::graphs).
pub trait Harness: Send + Sync + 'static {
    /// The backend's name, as reports show it.
    fn name(&self) -> &str;

    /// Whether the backend has a capability. Asked before the cases are listed, on one process.
    fn supports(&self, capability: Capability) -> Support;

    /// Starts this rank: a device and a communicator over the ranks of `bootstrap`.
    ///
    /// Called once on every rank of a world, each on a thread of its own. Every wait for another
    /// rank ends within `setup.deadline`.
    ///
    /// # Errors
    ///
    /// When the rank cannot be started, on all ranks alike.
    fn join(&self, bootstrap: Arc<dyn Bootstrap>, setup: &Setup) -> Result<Joined>;

    /// What a rank is.
    fn ranks(&self) -> Ranks {
        Ranks::Threads
    }

    /// The command that starts this many [launched](Ranks::Launched) ranks, to which the kit appends
    /// the test's own binary and its arguments: `mpirun -n 3`, for example.
    fn launcher(&self, ranks: usize) -> Vec<OsString> {
        let _ = ranks;
        Vec::new()
    }

    /// This rank's control plane, where ranks are processes.
    ///
    /// # Errors
    ///
    /// When the ranks cannot meet.
    fn bootstrap(&self, world: &World, deadline: Duration) -> Result<Arc<dyn Bootstrap>> {
        world.bootstrap(deadline)
    }

    /// Whether only one world may exist at a time, as on a GPU that the ranks share. Cases then run in
    /// the order of the worlds they want, so that each world is started once.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Whether devices behave as [`Setup::terrain`] says; where not, one world serves cases of every
    /// terrain.
    fn heeds_terrain(&self) -> bool {
        true
    }

    /// Whether ranks can be started here at all: that there is a GPU, for example. Where not, every
    /// case is listed as skipped, with the reason.
    fn platform(&self) -> Support {
        Support::Yes
    }
}

/// What a rank is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ranks {
    /// A thread; one world serves many cases.
    #[default]
    Threads,
    /// A process, started from the test's own binary; each world serves many cases too. On Linux.
    Processes,
    /// A process that [another launcher](Harness::launcher) starts, mpirun for example, from the
    /// test's own binary. On Linux.
    Launched,
}

/// The world a case wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Setup {
    /// Ranks.
    pub ranks: usize,
    /// How the devices behave, as far as the backend can choose.
    pub terrain: Terrain,
    /// How long ranks wait for each other.
    pub deadline: Duration,
}

/// How devices behave. A backend that has only one kind of device ignores this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Terrain {
    /// Ranks differ in whatever they may differ in: order of addresses, delays of destructors. Freed
    /// memory is poisoned, guards surround windows.
    #[default]
    Hostile,
    /// As hostile, and streams run beside the thread that enqueues, with ranks that drift apart.
    Concurrent,
}

impl Terrain {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Hostile, Self::Concurrent];

    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hostile => "hostile",
            Self::Concurrent => "concurrent",
        }
    }
}

/// A rank that has started.
#[derive(Debug)]
pub struct Joined {
    /// The communicator, which gives the device too.
    pub comm: Box<dyn Communicator>,
    /// What only the backend can tell about the device.
    pub probe: Box<dyn Probe>,
}

/// What only the backend can tell about a rank's device.
///
/// Every method has an answer for a backend that cannot tell.
pub trait Probe: fmt::Debug + Send {
    /// Bytes of symmetric memory the device has lost, in whole granules, after
    /// [`Device::collect`](collectives_core::device::Device::collect).
    fn mapped_bytes(&self) -> Option<usize> {
        None
    }

    /// Bytes of ordinary memory in use.
    fn ordinary_bytes(&self) -> Option<usize> {
        None
    }

    /// A range of this many bytes, a multiple of four mebibytes, that operations may use as ordinary
    /// memory. Its last four mebibytes are their own. The others may be few pages mapped again and
    /// again, so that a long range takes no more memory than a short one; or all of it is real.
    fn long_range(&self, _bytes: usize) -> Option<Memory> {
        None
    }

    /// Waits until the destructors of graphs that are gone have run.
    fn settle(&self) {}

    /// Whether nobody wrote where nobody may: guards and freed memory.
    ///
    /// # Errors
    ///
    /// What was written, in words.
    fn check_memory(&self) -> Result<(), String> {
        Ok(())
    }
}

/// The probe of a backend that can tell nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProbe;

impl Probe for NoProbe {}
