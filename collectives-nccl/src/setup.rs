//! Sets a communicator up, on a thread of its own so that a deadline can end it.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use collectives_core::bootstrap::Bootstrap;
use collectives_core::communicator::AbortHandle;
use collectives_core::error::{Error, ErrorKind, Misuse, Result, Unsupported};
use collectives_core::memory::Memory;
use collectives_core::rank::Rank;
use nccl_sys::{Config, UniqueId, Version};

use crate::communicator::NcclCommunicator;
use crate::convert;
use crate::device::CudaDevice;
use crate::error::{BACKEND, nccl_error};
use crate::hello::{self, Accord, Hello};
use crate::options::Options;
use crate::state::{NcclAbort, State};
use crate::watchdog;

/// How long a set-up thread may take to return after it was aborted.
const PATIENCE: Duration = Duration::from_secs(10);

/// A set-up in progress, which can be aborted before there is a communicator.
#[derive(Debug)]
#[must_use]
pub struct Setup {
    pub(crate) state: Arc<State>,
    pub(crate) device: Arc<CudaDevice>,
    /// Its last owner tells the watchdog to end.
    pub(crate) token: Memory,
}

impl Setup {
    /// Prepares to join the ranks of `bootstrap`, which belongs to this communicator alone.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) when NCCL is not found, cannot be told what the
    /// options ask for, or is too old; the other ranks hear of it.
    pub fn new(
        bootstrap: Arc<dyn Bootstrap>,
        device: Arc<CudaDevice>,
        options: Options,
    ) -> Result<Self> {
        let rank = bootstrap.rank();
        let prepared = Self::prepare(Arc::clone(&bootstrap), device, options);
        prepared.map_err(|error| {
            bootstrap.publish_failure(&error.kind().to_string());
            error.during("connect").on_backend(BACKEND).on_rank(rank)
        })
    }

    fn prepare(
        bootstrap: Arc<dyn Bootstrap>,
        device: Arc<CudaDevice>,
        options: Options,
    ) -> Result<Self> {
        let nccl = nccl_sys::nccl().map_err(nccl_error)?;
        options.algorithm.check(nccl.version())?;
        let shared = Arc::clone(&device.shared);
        let state = Arc::new(State::new(nccl, shared, bootstrap, options));
        watchdog::start(&state)?;
        let owned = Arc::clone(&state);
        let token = Memory::token(device.shared.id, move || owned.disown());
        Ok(Self {
            state,
            device,
            token,
        })
    }

    /// A handle that aborts this set-up, and afterwards the communicator.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(Arc::new(NcclAbort(Arc::clone(&self.state))))
    }

    /// Joins the other ranks; collective, within the deadline of the options.
    ///
    /// # Errors
    ///
    /// [`Mismatch`](ErrorKind::Mismatch) of versions, [`Unsupported`](ErrorKind::Unsupported) for
    /// ranks that share a GPU without leave, [`Timeout`](ErrorKind::Timeout),
    /// [`PeerFailed`](ErrorKind::PeerFailed) and [`Aborted`](ErrorKind::Aborted); what NCCL said
    /// otherwise. No rank has a communicator then.
    pub fn connect(self) -> Result<NcclCommunicator> {
        let state = Arc::clone(&self.state);
        self.join().map_err(|error| {
            let error = state.named(error.during("connect"));
            // Some rank may be waiting inside NCCL.
            state.fail(&error);
            error
        })
    }

    fn join(self) -> Result<NcclCommunicator> {
        let accord = self.greet()?;
        self.initialise(UniqueId::from_bytes(accord.id))?;
        let deadline = self.state.options.deadline;
        self.state
            .bootstrap
            .all_gather("nccl/ready", &[], deadline)?;
        NcclCommunicator::over(self, accord.symmetric, accord.shared)
    }

    /// Tells the others what they must know, and hears the same from them.
    fn greet(&self) -> Result<Accord> {
        let Self { state, device, .. } = self;
        let (nccl, options) = (state.nccl, &state.options);
        let mut id = [0; UniqueId::BYTES];
        if state.rank() == Rank(0) {
            let mut unique = UniqueId::from_bytes(id);
            let _current = device.shared.context.enter_relaxed()?;
            // SAFETY: `ncclGetUniqueId` (nccl.h) writes 128 bytes.
            unsafe { nccl.get_unique_id(&raw mut unique) }.map_err(nccl_error)?;
            id = unique.to_bytes();
        }
        let gpu = device.shared.blocks().err();
        let no_symmetric = hello::no_symmetric(nccl.version(), options)
            .or_else(|| gpu.map(|error| error.kind().to_string()));
        let mine = Hello {
            version: nccl.version().code(),
            may_share: hello::may_share(),
            gpu: hello::gpu_identity(device.shared.uuid),
            id,
            no_symmetric: no_symmetric.unwrap_or_default(),
        };
        let all = state
            .bootstrap
            .all_gather("nccl/hello", &mine.encode(), options.deadline)?;
        let all: Vec<_> = all
            .iter()
            .map(|bytes| Hello::decode(bytes))
            .collect::<Result<_>>()?;
        hello::accord(&all, options)
    }

    /// Has NCCL set up, on a thread of its own.
    fn initialise(&self, id: UniqueId) -> Result<()> {
        let state = Arc::clone(&self.state);
        let (rank, ranks) = (convert::rank(state.rank())?, ranks_of(&state)?);
        let (sender, outcome) = channel();
        let spawned = thread::Builder::new()
            .name("nccl-setup".to_owned())
            .spawn(move || {
                // The receiver may have given up.
                let _ = sender.send(initialise(&state, id, rank, ranks));
            });
        spawned.map_err(|error| {
            Error::new(ErrorKind::System(format!(
                "no thread for the set-up: {error}"
            )))
        })?;
        let deadline = self.state.options.deadline;
        let begun = Instant::now();
        let mut gone_wrong: Option<(Instant, Error)> = None;
        loop {
            match outcome.recv_timeout(Duration::from_millis(20)) {
                Ok(result) => {
                    // What aborted it says more than the error of the call.
                    return match self.state.health() {
                        Ok(()) => result,
                        Err(error) => Err(gone_wrong.map_or(error, |(_, why)| why)),
                    };
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let text = "the set-up thread ended without an outcome".to_owned();
                    return Err(Error::new(ErrorKind::System(text)));
                }
            }
            match &gone_wrong {
                Some((since, error)) if since.elapsed() >= PATIENCE => return Err(error.clone()),
                Some(_) => {}
                None => {
                    if let Err(error) = self.state.health() {
                        gone_wrong = Some((Instant::now(), error));
                    } else if begun.elapsed() >= deadline {
                        let cause = format!("NCCL did not set up within {deadline:?}");
                        let error = Error::new(ErrorKind::Aborted { cause });
                        self.state.fail(&error);
                        gone_wrong = Some((Instant::now(), error));
                    }
                }
            }
        }
    }
}

fn ranks_of(state: &State) -> Result<i32> {
    let world_size = state.bootstrap.world_size();
    i32::try_from(world_size)
        .map_err(|_| Misuse::Other(format!("{world_size} ranks are too many")).into())
}

fn initialise(state: &State, id: UniqueId, rank: i32, ranks: i32) -> Result<()> {
    let _current = state.device.context.enter_relaxed()?;
    let mut config = Config::new();
    // Blocking calls cost a tenth of the host time of the others, and the watchdog ends them.
    config.blocking = 1;
    // SAFETY: `ncclCommInitRankConfig` (nccl.h): the slot lives as long as the state, NCCL
    // publishes the handle in it at once, and the configuration is read before it returns.
    unsafe {
        state
            .nccl
            .comm_init_rank_config(state.slot(), ranks, id, rank, &raw mut config)
    }
    .map_err(nccl_error)
}

/// The version of the NCCL library of this process.
///
/// # Errors
///
/// [`Unsupported`](ErrorKind::Unsupported) when it is not found.
pub fn library_version() -> Result<Version> {
    let found = nccl_sys::nccl().map_err(nccl_error);
    Ok(found?.version())
}

/// Why there is nothing to run on here, if so: no driver, no GPU or no NCCL.
///
/// # Errors
///
/// The first thing that is missing.
pub fn check_platform() -> Result<()> {
    crate::driver::driver()?;
    if CudaDevice::count() == 0 {
        let text = "the CUDA driver sees no GPU".to_owned();
        return Err(Error::unsupported(Unsupported::Operation(text)).on_backend(BACKEND));
    }
    library_version().map(drop)
}
