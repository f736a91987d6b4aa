//! What a case works with on one rank.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::error::{Misuse, Result};
use collectives_core::layered::{Layer, Layered};
use collectives_core::scratch::ScratchAllocator;
use collectives_core::stream::Stream;

pub use self::replay::{Framework, Replay};
pub use self::tensors::Part;
use crate::harness::{Harness, Joined, Probe, Setup};
use crate::interpose::{Interposed, OnDevice};
use crate::planted::Planted;
use crate::planted::communicator::Bugged;
use crate::planted::device::BuggedDevice;
use crate::planted::quarantine::{Quarantine, Quarantined};
use crate::watchdog::Progress;
use crate::witness::{Witness, WitnessLayer};

mod calls;
mod control;
mod replay;
mod tensors;

/// The handle of users, over whatever communicator and allocator the case asked for.
pub type Handle = Collectives<Box<dyn Communicator>, Box<dyn ScratchAllocator>>;

/// One rank in one case.
///
/// Communicators are children of the world's own, so that every case has fresh ones. All of them are
/// on one device, whose calls the [`Witness`] sees.
pub struct Rig<'w> {
    pub(crate) harness: &'w Arc<dyn Harness>,
    pub(crate) setup: Setup,
    pub(crate) parent: &'w mut dyn Communicator,
    pub(crate) probe: &'w dyn Probe,
    pub(crate) bootstrap: &'w Arc<dyn Bootstrap>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) witness: Arc<Witness>,
    pub(crate) device: Arc<dyn Device>,
    /// That device without planted bugs.
    seen: Arc<dyn Device>,
    bugged: Option<Arc<BuggedDevice>>,
    pub(crate) stream: Stream,
    pub(crate) bug: Option<Planted>,
    pub(crate) quarantine: Option<Arc<Quarantine>>,
    pub(crate) rounds: &'w mut u64,
}

impl std::fmt::Debug for Rig<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rig")
            .field("setup", &self.setup)
            .field("bug", &self.bug)
            .finish_non_exhaustive()
    }
}

impl<'w> Rig<'w> {
    pub(crate) fn new(
        harness: &'w Arc<dyn Harness>,
        setup: Setup,
        joined: &'w mut Joined,
        bootstrap: &'w Arc<dyn Bootstrap>,
        progress: &Arc<Progress>,
        bug: Option<Planted>,
        rounds: &'w mut u64,
    ) -> Result<Self> {
        let witness = Witness::new(Arc::clone(progress));
        let inner = Arc::clone(joined.comm.device());
        let seen: Arc<dyn Device> =
            Arc::new(Interposed::new(inner, Arc::new(Arc::clone(&witness))));
        let bugged = bug.map(|bug| Arc::new(BuggedDevice::new(bug)));
        let device: Arc<dyn Device> = match &bugged {
            Some(bugged) => Arc::new(Interposed::new(Arc::clone(&seen), Arc::clone(bugged))),
            None => Arc::clone(&seen),
        };
        let stream = device.create_stream()?;
        Ok(Self {
            harness,
            setup,
            parent: &mut *joined.comm,
            probe: &*joined.probe,
            bootstrap,
            progress: Arc::clone(progress),
            witness,
            device,
            seen,
            bugged,
            stream,
            bug,
            quarantine: bug.map(|_| Arc::default()),
            rounds,
        })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.bootstrap.rank().index()
    }

    /// Ranks in the world.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.bootstrap.world_size()
    }

    /// Bytes that symmetric memory is mapped in multiples of.
    #[must_use]
    pub fn granule(&self) -> usize {
        self.parent.info().granule
    }

    /// How long ranks wait for each other in this world.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.setup.deadline
    }

    /// The device all communicators of the case are on.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device)
    }

    /// The case's first stream.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// What reached the backend.
    #[must_use]
    pub fn witness(&self) -> &Witness {
        &self.witness
    }

    /// What only the backend can tell.
    #[must_use]
    pub fn probe(&self) -> &dyn Probe {
        self.probe
    }

    /// Bytes that the device has lost to symmetric memory, without those that only the kit keeps
    /// because a bug is planted; as [`Probe::mapped_bytes`].
    #[must_use]
    pub fn mapped_bytes(&self) -> Option<usize> {
        let kept = self
            .quarantine
            .as_ref()
            .map_or(0, |kept| kept.mapped_bytes());
        Some(self.probe.mapped_bytes()? - kept)
    }

    /// Whether this bug is planted.
    #[must_use]
    pub fn has(&self, bug: Planted) -> bool {
        self.bug == Some(bug)
    }

    /// A fresh communicator of all ranks; collective.
    ///
    /// # Errors
    ///
    /// As [`Communicator::split`].
    pub fn communicator(&mut self) -> Result<Box<dyn Communicator>> {
        let child = self.parent.split(Some(0), self.parent.info().rank.0)?;
        let Some(child) = child else {
            return Err(
                Misuse::Other("a split with a color gave no communicator".to_owned()).into(),
            );
        };
        Ok(self.around(child))
    }

    /// As [`Rig::communicator`], of a backend that this layer changes; planted bugs are around it.
    ///
    /// # Errors
    ///
    /// As [`Communicator::split`].
    pub fn communicator_under(
        &mut self,
        layer: impl Layer + 'static,
    ) -> Result<Box<dyn Communicator>> {
        let child = self.parent.split(Some(0), self.parent.info().rank.0)?;
        let missing = || Misuse::Other("a split with a color gave no communicator".to_owned());
        let child = child.ok_or_else(missing)?;
        Ok(self.around(Box::new(Layered::new(layer, child))))
    }

    /// A communicator of the backend as cases see it.
    pub(crate) fn around(&self, comm: Box<dyn Communicator>) -> Box<dyn Communicator> {
        self.progress.beat();
        self.progress.watch(comm.abort_handle());
        let comm: Box<dyn Communicator> = match &self.quarantine {
            Some(quarantine) => Box::new(Layered::new(Quarantined::new(quarantine), comm)),
            None => comm,
        };
        let layer = WitnessLayer(Arc::clone(&self.witness));
        Box::new(OnDevice {
            inner: ManuallyDrop::new(Box::new(Layered::new(layer, comm))),
            device: Arc::clone(&self.device),
            seen: Arc::clone(&self.seen),
            bugged: Bugged::new(self.bug, self.bugged.clone()),
        })
    }
}

/// A short number for a value, to compare it across ranks.
pub(crate) fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
