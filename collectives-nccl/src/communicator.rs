//! The communicator over NCCL.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use collectives_core::addr::{Addr, WindowSlice};
use collectives_core::agreement::Record;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::collective::Collective;
use collectives_core::communicator::{AbortHandle, Capabilities, CommInfo, Communicator, Deferred};
use collectives_core::device::Device;
use collectives_core::error::{Error, Misuse, Result, Unsupported};
use collectives_core::memory::Memory;
use collectives_core::rank::{CommId, Process};
use collectives_core::round::{Call, Rounds};
use collectives_core::split;
use collectives_core::submission::Submission;
use collectives_core::symmetric::SymmetricMemory;
use nccl_sys::Version;

use crate::device::{CudaDevice, vmm::Blocks};
use crate::error::BACKEND;
use crate::options::{Algorithm, Options};
use crate::paths;
use crate::setup::Setup;
use crate::state::{NcclAbort, State};
use crate::watchdog;
use crate::window::Windows;

/// What a granule is where there is no symmetric memory.
const GRANULE: usize = 2 << 20;

/// One rank's end of a communicator of this backend.
///
/// Calls that differ between ranks are not compared: the decorator `Checked` of `collectives-alloc`
/// finds them.
///
/// # Dropping it
///
/// A drop without [`Communicator::shutdown`] makes no collective call and never waits, but counts
/// as this rank's failure, because the others may be waiting for it. NCCL's communicator is aborted
/// when the last graph that captured one of its operations is gone.
///
/// In the order of declaration, so that what a call reads lies together.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct NcclCommunicator {
    pub(crate) state: Arc<State>,
    pub(crate) windows: Windows,
    /// What the library chooses from.
    pub(crate) algorithm: Algorithm,
    pub(crate) info: CommInfo,
    pub(crate) capabilities: Capabilities,
    device: Arc<dyn Device>,
    cuda: Arc<CudaDevice>,
    rounds: Arc<Rounds>,
    /// The word that barriers reduce.
    pub(crate) barrier: Memory,
    splits: u64,
    /// The process that the communicator is of.
    process: Process,
}

impl NcclCommunicator {
    /// Joins the ranks of `bootstrap`, each a process or thread with its own [`CudaDevice`];
    /// collective.
    ///
    /// # Errors
    ///
    /// As [`Setup::new`] and [`Setup::connect`].
    pub fn connect(
        bootstrap: Arc<dyn Bootstrap>,
        device: Arc<CudaDevice>,
        options: Options,
    ) -> Result<Self> {
        Setup::new(bootstrap, device, options)?.connect()
    }

    pub(crate) fn over(
        setup: Setup,
        symmetric: std::result::Result<(), Unsupported>,
        shared: bool,
    ) -> Result<Self> {
        let Setup {
            state,
            device: cuda,
            token,
        } = setup;
        let granule = cuda.shared.blocks().map_or(GRANULE, Blocks::granule);
        let barrier = cuda.allocate(256)?;
        let info = CommInfo {
            id: CommId::fresh(),
            rank: state.rank(),
            world_size: state.bootstrap.world_size(),
            backend: BACKEND,
            granule,
            overhead: 0,
            token,
        };
        let forced = state.options.algorithm != Algorithm::Auto;
        let rounds = Arc::new(Rounds::new("nccl"));
        Ok(Self {
            capabilities: Capabilities {
                symmetric,
                paths: paths::table(state.nccl.version(), forced, shared),
                drains: true,
                compares_calls: false,
                // It can be told since 2.31.
                forces_kernels: Algorithm::Symmetric.check(state.nccl.version()).is_ok(),
                world: 1..=usize::MAX,
            },
            windows: Windows::new(
                info.id,
                Arc::clone(&state),
                Arc::clone(&cuda),
                Arc::clone(&rounds),
            ),
            device: Arc::clone(&cuda) as Arc<dyn Device>,
            cuda,
            info,
            algorithm: state.options.algorithm,
            state,
            rounds,
            barrier,
            splits: 0,
            process: Process::this(),
        })
    }

    /// The library's version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.state.nccl.version()
    }

    /// The library's communicator, for calls that this crate does not make; null once it has ended.
    ///
    /// Only calls that enqueue may be made on it, in the same order on all ranks, by the thread that
    /// uses this communicator. It belongs to this communicator, which ends it.
    #[must_use]
    pub fn as_raw(&self) -> nccl_sys::Comm {
        self.state.raw()
    }

    /// The device, as what it is.
    #[must_use]
    pub fn cuda_device(&self) -> &Arc<CudaDevice> {
        &self.cuda
    }

    /// Communicators of this process that NCCL still holds, those included that only graphs own.
    /// What is left when the process ends is leaked.
    #[must_use]
    pub fn live_count() -> usize {
        watchdog::live()
    }

    /// Those among them that nobody owns any more and that are being ended.
    #[must_use]
    pub fn ending_count() -> usize {
        watchdog::ending()
    }

    /// The call of the last round.
    fn last_call(&self) -> Call<'static> {
        Call::named("shutdown").after(self.state.operations(), false)
    }

    fn child(&mut self, color: Option<u32>, key: u32) -> Result<Option<Self>> {
        let deadline = self.state.options.deadline;
        let records = self.exchange("split", &split::record(color, key), deadline)?;
        self.splits += 1;
        let Some(color) = color else { return Ok(None) };
        let members = split::members(&records, color);
        let name = format!("nccl/split/{}/{color}", self.splits);
        let bootstrap = self.state.bootstrap.subgroup(&name, &members)?;
        let options: Options = self.state.options.clone();
        Self::connect(bootstrap, Arc::clone(&self.cuda), options).map(Some)
    }

    /// Gives every rank the record of every rank, in a round of the call of this name.
    fn exchange(
        &mut self,
        name: &'static str,
        mine: &Record,
        deadline: Duration,
    ) -> Result<Vec<Record>> {
        let state = &*self.state;
        state.check_open()?;
        let words = mine.call();
        let call = Call::named(name).in_words(words.as_deref().unwrap_or(name));
        let call = call.after(state.operations(), false);
        self.rounds
            .run(&*state.bootstrap, call, &mine.encode(), deadline)
            .map_err(|error| state.own_failure(error))
            .and_then(|all| all.iter().map(|bytes| Record::decode(bytes)).collect())
            .map_err(|error: Error| state.note(error.during(name)))
    }

    /// Hands everything to the watchdog, which ends it after the last graph.
    fn let_go(&mut self) -> Deferred {
        let held = !self.info.token.is_sole_owner();
        let deferred = match held {
            true => {
                let windows = self.windows.bytes();
                Deferred {
                    windows: windows.len(),
                    mapped_bytes: windows.iter().map(|&bytes| self.info.mapped(bytes)).sum(),
                    communicator: true,
                }
            }
            false => Deferred::default(),
        };
        self.info.token = Memory::token(self.cuda.shared.id, || {});
        if !held && !self.state.wait_ended(self.state.options.deadline) {
            tracing::warn!("NCCL's communicator did not end within the deadline; it is leaked");
        }
        deferred
    }
}

impl Communicator for NcclCommunicator {
    fn info(&self) -> &CommInfo {
        &self.info
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    #[inline(always)]
    unsafe fn enqueue(&mut self, submission: &Submission<'_>) -> Result<()> {
        let enqueued = match self.plain(submission) {
            // SAFETY: By the caller.
            Some(call) => unsafe { self.enqueue_plain(submission, &call) },
            // SAFETY: By the caller.
            None => unsafe { self.enqueue_any(submission) },
        };
        enqueued.map_err(|error| self.state.note(error))
    }

    fn refused(&mut self, _calls: &[Collective<'_>], error: Error) -> Error {
        error
    }

    fn agree(&mut self, mine: &Record, deadline: Duration) -> Result<Vec<Record>> {
        self.exchange("agree", mine, deadline)
    }

    fn window_of(&self, addr: Addr, bytes: usize) -> Option<WindowSlice> {
        self.windows.containing(addr, bytes)
    }

    fn symmetric(&mut self) -> Option<&mut dyn SymmetricMemory> {
        match self.capabilities.symmetric {
            Ok(()) => Some(&mut self.windows),
            Err(_) => None,
        }
    }

    /// Children are set up anew through the bootstrap, so that nothing of the parent is shared.
    fn split(&mut self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn Communicator>>> {
        let child = self.child(color, key)?;
        Ok(child.map(|child| Box::new(child) as Box<dyn Communicator>))
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(Arc::new(NcclAbort(Arc::clone(&self.state))))
    }

    /// It waits for the work that this rank enqueued and then for all ranks to come here, each
    /// within the deadline, and for no graph.
    fn shutdown(&mut self) -> Result<Deferred> {
        if self.state.is_closed() {
            return Ok(Deferred::default());
        }
        let deadline = self.state.options.deadline;
        let ready = match self.state.health() {
            Err(error) => Err(error),
            Ok(()) if !self.state.settle(deadline) => {
                Err(self.state.health().err().unwrap_or_else(|| {
                    let what =
                        "operations were still running when the deadline of the shutdown passed";
                    Error::from(Misuse::Other(what.to_owned())).poisoning()
                }))
            }
            // Nobody deregisters a window that another rank still works on.
            Ok(()) => self
                .rounds
                .run(&*self.state.bootstrap, self.last_call(), &[], deadline)
                .map_err(|error| self.state.own_failure(error))
                .map(drop),
        };
        if let Err(error) = &ready {
            self.state.fail(error);
        }
        self.state.close();
        let deferred = self.let_go();
        ready
            .map(|()| deferred)
            .map_err(|error| self.state.named(error.during("shutdown")))
    }
}

impl Drop for NcclCommunicator {
    /// A fork has copies of everything that its parent owns, and what it drops of that is no end of the
    /// parent's.
    fn drop(&mut self) {
        if !self.process.is_this() || self.state.is_closed() || self.state.has_failed() {
            return;
        }
        let cause = match thread::panicking() {
            true => "it panicked",
            false => "it dropped the communicator without shutting it down",
        };
        self.state.bootstrap.publish_failure(cause);
    }
}
