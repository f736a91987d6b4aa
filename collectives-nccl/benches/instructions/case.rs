//! The calls that are counted: two ranks make them, on a library that makes nobody wait, and those of the
//! first are counted.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::device::Device;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::in_process::InProcess;
use collectives_core::path::{OpReport, Path, Staging};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::ScratchAllocator;
use collectives_core::stream::Stream;
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::device::CudaDevice;
use collectives_nccl::options::Options;

type Handle = Collectives<NcclCommunicator, Box<dyn ScratchAllocator>>;

/// How often each call is made while it is counted, and before.
pub(crate) const CALLS: u32 = 100;
const BEFORE: u32 = 20;

/// Elements of a buffer, and of one rank's part of it.
const COUNT: usize = 4096;
const PART: usize = COUNT / 2;

/// One kind of call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    op: Op,
    path: Path,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Group,
}

const fn case(name: &'static str, op: Op, path: Path) -> Case {
    Case { name, op, path }
}

pub(crate) const CASES: [Case; 10] = [
    case("all_reduce zero-copy", Op::AllReduce, Path::ZeroCopy),
    case("all_reduce staged", Op::AllReduce, Path::Staged),
    case("all_reduce direct", Op::AllReduce, Path::Direct),
    case(
        "reduce_scatter zero-copy",
        Op::ReduceScatter,
        Path::ZeroCopy,
    ),
    case("reduce_scatter staged", Op::ReduceScatter, Path::Staged),
    case("all_gather zero-copy", Op::AllGather, Path::ZeroCopy),
    case("all_gather staged", Op::AllGather, Path::Staged),
    case("broadcast direct", Op::Broadcast, Path::Direct),
    case("group of two zero-copy", Op::Group, Path::ZeroCopy),
    case("group of two staged", Op::Group, Path::Staged),
];

/// One rank, and what its calls work on.
struct Rank {
    handle: Handle,
    stream: Stream,
    wholes: [Buffer<f32>; 2],
    part: Buffer<f32>,
}

impl Rank {
    /// Joins the other rank, with buffers where the path wants them.
    fn join(end: InProcess, path: Path) -> Result<Self> {
        let cuda = CudaDevice::open(0)?;
        let mut options = Options::default();
        options.deadline = Duration::from_secs(120);
        let comm = NcclCommunicator::connect(Arc::new(end), Arc::clone(&cuda), options)?;
        let scratch = ScratchConfig::from_toml("[scratch]\npolicy = \"geometric\"\n")?.build()?;
        let mut handle = Collectives::new(comm, scratch);
        handle.set_staging(match path {
            Path::Staged => Staging::Forced,
            Path::ZeroCopy => Staging::Auto,
            _ => Staging::Never,
        });
        let device: Arc<dyn Device> = cuda;
        let stream = device.create_stream()?;
        let mut buffer = |count| match path {
            Path::ZeroCopy => handle.symmetric_buffer(count),
            _ => Buffer::zeroed(&device, count, &stream),
        };
        let wholes = [buffer(COUNT)?, buffer(COUNT)?];
        let part = buffer(PART)?;
        Ok(Self {
            handle,
            stream,
            wholes,
            part,
        })
    }

    #[inline(always)]
    fn call(&mut self, op: Op) -> Result<OpReport> {
        let Self {
            handle,
            stream,
            wholes: [whole, other],
            part,
        } = self;
        match op {
            Op::AllReduce => handle.all_reduce(whole, ReduceOp::Sum, stream),
            Op::ReduceScatter => handle.reduce_scatter(whole, part, ReduceOp::Sum, stream),
            Op::AllGather => handle.all_gather(part, whole, stream),
            Op::Broadcast => handle.broadcast(whole, collectives_core::rank::Rank(0), stream),
            Op::Group => {
                let reports = handle.group(stream, |group| {
                    group.all_reduce(whole, ReduceOp::Sum)?;
                    group.all_reduce(other, ReduceOp::Sum).map(drop)
                })?;
                reports
                    .first()
                    .copied()
                    .ok_or_else(|| failed("a group reports nothing"))
            }
        }
    }

    /// What is counted: the loop is some five instructions of it.
    #[inline(never)]
    fn counted(&mut self, op: Op) -> Result<()> {
        match op {
            // Each apart, as a caller has it, who writes the operation down.
            Op::AllReduce => self.repeat(Op::AllReduce),
            Op::ReduceScatter => self.repeat(Op::ReduceScatter),
            Op::AllGather => self.repeat(Op::AllGather),
            Op::Broadcast => self.repeat(Op::Broadcast),
            Op::Group => self.repeat(Op::Group),
        }
    }

    #[inline(always)]
    fn repeat(&mut self, op: Op) -> Result<()> {
        (0..CALLS).try_for_each(|_| self.call(op).map(drop))
    }
}

/// The function whose inside is counted, as callgrind is to match it.
pub(crate) const COUNTED: &str = "*Rank::counted*";

fn failed(text: &str) -> Error {
    Error::new(ErrorKind::System(text.to_owned()))
}

/// Makes the calls of a case on two ranks.
pub(crate) fn run(name: &str) -> Result<()> {
    let case = CASES.iter().find(|case| case.name == name);
    let case = *case.ok_or_else(|| failed("no such case"))?;
    let rank = |end: InProcess| -> Result<()> {
        let is_first = collectives_core::bootstrap::Bootstrap::rank(&end).0 == 0;
        let mut rank = Rank::join(end, case.path)?;
        // Both, because scratch is made by all ranks.
        for _ in 0..BEFORE {
            let report = rank.call(case.op)?;
            if report.path != case.path {
                return Err(failed(&format!("wanted {}, and got {report:?}", case.path)));
            }
        }
        match is_first {
            true => rank.counted(case.op)?,
            // What is enqueued on one rank ends when the other has enqueued it too.
            false => (0..CALLS).try_for_each(|_| rank.call(case.op).map(drop))?,
        }
        rank.handle.close().map(drop)
    };
    let rank = &rank;
    thread::scope(|scope| {
        let threads: Vec<_> = InProcess::world(2)
            .into_iter()
            .map(|end| scope.spawn(move || rank(end)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|_| Err(failed("a rank panicked")))
        })
    })
}
