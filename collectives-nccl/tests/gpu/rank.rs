//! One rank, in a process of its own.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use collectives_core::bootstrap::Bootstrap;
use collectives_core::device::Device;
use collectives_core::rank::Rank;
use collectives_core::stream::Stream;
use collectives_core::tcp_store::Join;
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::device::CudaDevice;
use collectives_nccl::options::Options;

use crate::case::Case;
use crate::{Outcome, Said};

/// Where this process stands.
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) port: u16,
    pub(crate) cases: Vec<String>,
    pub(crate) results: PathBuf,
}

pub(crate) const PLACE: &str = "COLLECTIVES_GPU_PLACE";
pub(crate) const RESULTS: &str = "COLLECTIVES_GPU_RESULTS";

/// What cases use.
pub(crate) struct Ctx {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) cuda: Arc<CudaDevice>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) stream: Stream,
    pub(crate) bootstrap: Arc<dyn Bootstrap>,
    /// Whether the process is to be killed after the case.
    pub(crate) dies: bool,
    worlds: usize,
}

impl Place {
    pub(crate) fn from_env() -> Option<Self> {
        let place = env::var(PLACE).ok()?;
        let mut words = place.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (rank, ranks, port) = (number()?, number()?, number()?);
        Some(Self {
            rank,
            ranks,
            port: u16::try_from(port).ok()?,
            cases: words.map(ToOwned::to_owned).collect(),
            results: env::var_os(RESULTS)?.into(),
        })
    }

    fn report(&self, line: &str) {
        let opened = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.results);
        if let Ok(mut file) = opened {
            let _ = writeln!(file, "{}", line.replace('\n', " / "));
        }
    }
}

pub(crate) fn run<'a>(place: &Place, known: impl Iterator<Item = &'a Case>) -> ExitCode {
    let signal = Some(rustix::process::Signal::KILL);
    let _ = rustix::process::set_parent_process_death_signal(signal);
    let known: Vec<_> = known.collect();
    let mut ctx = match Ctx::new(place) {
        Ok(ctx) => ctx,
        Err(words) => {
            place.report(&format!("SETUP {words}"));
            return ExitCode::FAILURE;
        }
    };
    for name in &place.cases {
        let Some(case) = known.iter().find(|known| known.name == *name) else {
            continue;
        };
        let begun = Instant::now();
        place.report(&format!("BEGIN {name}"));
        let outcome = catch_unwind(AssertUnwindSafe(|| (case.run)(&mut ctx)));
        let took = begun.elapsed().as_millis();
        match outcome {
            Ok(Ok(())) => place.report(&format!("PASS {name} {took} ms")),
            Ok(Err(words)) => place.report(&format!("FAIL {name} {words}")),
            Err(panic) => {
                let words = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                place.report(&format!(
                    "FAIL {name} panicked: {}",
                    words.unwrap_or_default()
                ));
            }
        }
        if ctx.dies {
            let pid = rustix::process::getpid();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        if place.cases.len() > 1 && ctx.meet(&format!("after {name}")).is_err() {
            place.report("GONE a peer did not come to the end of the case");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

impl Ctx {
    fn new(place: &Place) -> Result<Self, String> {
        let store = Join::new(Rank::new(place.rank), place.ranks, "127.0.0.1", place.port)
            .deadline(Duration::from_secs(60))
            .join()
            .said("join")?;
        Self::of(place.rank, place.ranks, Arc::new(store))
    }

    /// A rank on the next GPU, in turn.
    pub(crate) fn of(
        rank: usize,
        ranks: usize,
        bootstrap: Arc<dyn Bootstrap>,
    ) -> Result<Self, String> {
        let cuda = CudaDevice::open(rank % CudaDevice::count().max(1)).said("open")?;
        let device = Arc::clone(&cuda) as Arc<dyn Device>;
        Ok(Self {
            rank,
            ranks,
            stream: device.create_stream().said("stream")?,
            cuda,
            device,
            bootstrap,
            dies: false,
            worlds: 0,
        })
    }

    pub(crate) fn options() -> Options {
        let mut options = Options::from_env();
        options.deadline = Duration::from_secs(40);
        options.work_deadline = Duration::from_secs(20);
        options
    }

    /// All ranks, in the same order, as a control plane of their own.
    pub(crate) fn world(&mut self) -> Result<Arc<dyn Bootstrap>, String> {
        self.worlds += 1;
        let all: Vec<_> = (0..self.ranks).map(Rank::new).collect();
        let name = format!("world {}", self.worlds);
        self.bootstrap.subgroup(&name, &all).said("subgroup")
    }

    pub(crate) fn connect(&mut self) -> Result<NcclCommunicator, String> {
        self.connect_with(Self::options())
    }

    pub(crate) fn connect_with(&mut self, options: Options) -> Result<NcclCommunicator, String> {
        let world = self.world()?;
        NcclCommunicator::connect(world, Arc::clone(&self.cuda), options).said("connect")
    }

    /// All ranks come here.
    pub(crate) fn meet(&self, round: &str) -> Outcome {
        let met = self
            .bootstrap
            .all_gather(round, &[], Duration::from_secs(60));
        met.map(drop).said("meet")
    }

    pub(crate) fn sync(&self) -> Outcome {
        self.device.synchronize(&self.stream).said("synchronize")
    }
}
