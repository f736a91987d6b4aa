//! All-gather and reduce-scatter of one unit of a sharded model, beside the library's own calls on
//! ordinary memory.
//!
//! A unit is what a framework gathers and scatters at once, a layer for example: all its bf16
//! parameters, of which each rank has an equal shard, apart from the whole.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use collectives_core::buffer::Buffer;
use collectives_core::device::Device;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::graph::GraphTemplate;
use collectives_core::path::{Path, Staging};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;
use collectives_core::stream::Stream;
use collectives_core::tensor::Tensor as _;
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::device::CudaDevice;
use half::bf16;
use nccl_sys::{DataType, Nccl, RedOp};
use serde::{Deserialize, Serialize};

use crate::driver::Driver;
use crate::point::{captured, median};
use crate::turns::turns;
use crate::variant::{Handle, handle, raw, took};

/// Bytes of a unit; the small ones show from where on staging pays.
const SIZES: [usize; 7] = [
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    8 << 20,
    32 << 20,
    128 << 20,
];
const ROUNDS: usize = 60;
/// Calls in what is timed.
const BATCH: usize = 4;

/// What one call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Op {
    AllGather,
    ReduceScatter,
}

/// How it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Way {
    /// The library's own call, on ordinary memory.
    Plain,
    /// Ours, on symmetric buffers.
    Pooled,
    /// Ours, on ordinary memory.
    Staged,
}

const WAYS: [Way; 3] = [Way::Plain, Way::Pooled, Way::Staged];

/// One way of one call at one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Unit {
    op: Op,
    bytes: usize,
    way: Way,
    graph: bool,
    microseconds: f64,
    /// What each link must carry for it, gigabytes a second, as nccl-tests defines it: the unit's bytes
    /// times `(ranks - 1) / ranks`, by the time.
    bus_bandwidth: f64,
    kernels: Vec<String>,
}

/// A shard and the whole it is a part of.
#[derive(Debug)]
struct Tensors {
    shard: Buffer<bf16>,
    whole: Buffer<bf16>,
}

#[derive(Debug)]
struct Sets {
    pooled: Tensors,
    ordinary: Tensors,
}

impl Sets {
    fn of(&mut self, way: Way) -> &mut Tensors {
        match way {
            Way::Pooled => &mut self.pooled,
            Way::Plain | Way::Staged => &mut self.ordinary,
        }
    }
}

#[derive(Debug)]
struct Bench<'a> {
    nccl: &'static Nccl,
    driver: &'a Driver,
    cuda: &'a CudaDevice,
    on: Handle,
    stream: Stream,
}

/// Measures all units, on a communicator of their own.
pub(crate) fn measure(
    comm: NcclCommunicator,
    cuda: &Arc<CudaDevice>,
    driver: &Driver,
) -> Result<Vec<Unit>> {
    let mut bench = Bench {
        nccl: nccl_sys::nccl().map_err(|error| Error::new(ErrorKind::System(error.to_string())))?,
        driver,
        cuda,
        on: handle(comm, "events")?,
        stream: cuda.create_stream()?,
    };
    let mut units = Vec::new();
    for bytes in SIZES {
        units.extend(bench.size(bytes)?);
    }
    let _ = bench.on.close()?;
    Ok(units)
}

impl Bench<'_> {
    fn size(&mut self, bytes: usize) -> Result<Vec<Unit>> {
        let ranks = self.on.world_size();
        let (shard, whole) = (bytes / 2 / ranks, bytes / 2);
        let device: Arc<dyn Device> = Arc::clone(self.on.device());
        let mut sets = Sets {
            pooled: Tensors {
                shard: self.on.symmetric_buffer(shard)?,
                whole: self.on.symmetric_buffer(whole)?,
            },
            ordinary: Tensors {
                shard: Buffer::zeroed(&device, shard, &self.stream)?,
                whole: Buffer::zeroed(&device, whole, &self.stream)?,
            },
        };
        let _ = self.on.reserve(&[Request::new(bytes)])?;
        let mut units = Vec::new();
        for op in [Op::AllGather, Op::ReduceScatter] {
            for way in WAYS {
                self.check(op, way, sets.of(way))?;
            }
            for graph in [false, true] {
                let times = match graph {
                    false => self.eager(op, &mut sets)?,
                    true => self.replayed(op, &mut sets)?,
                };
                for (way, microseconds) in WAYS.into_iter().zip(times) {
                    let one = self.captured(op, way, sets.of(way), 1)?;
                    units.push(Unit {
                        op,
                        bytes,
                        way,
                        graph,
                        microseconds,
                        bus_bandwidth: bus_bandwidth(bytes, ranks, microseconds),
                        kernels: self.cuda.kernel_names(&*one)?,
                    });
                }
            }
        }
        drop(sets);
        let _ = self.on.trim()?;
        Ok(units)
    }

    /// Makes one call on known inputs and compares every element.
    fn check(&mut self, op: Op, way: Way, tensors: &mut Tensors) -> Result<()> {
        let (rank, ranks, count) = (
            self.on.rank().index(),
            self.on.world_size(),
            tensors.shard.len(),
        );
        // Small enough for sums of eight to be exact.
        let of = |rank: usize, index: usize| bf16::from_f32(small((index + 3 * rank) % 13));
        let inputs = |count| (0..count).map(|index| of(rank, index)).collect::<Vec<_>>();
        let Tensors { shard, whole } = tensors;
        shard.write(&inputs(count), &self.stream)?;
        whole.write(&inputs(count * ranks), &self.stream)?;
        self.call(op, way, tensors)?;
        let expected = |index: usize| match op {
            Op::AllGather => of(index / count, index % count),
            Op::ReduceScatter => {
                let terms = (0..ranks).map(|from| of(from, rank * count + index).to_f32());
                bf16::from_f32(terms.sum())
            }
        };
        let found = match op {
            Op::AllGather => tensors.whole.read(&self.stream)?,
            Op::ReduceScatter => tensors.shard.read(&self.stream)?,
        };
        match (0..found.len()).find(|&index| found[index] != expected(index)) {
            None => Ok(()),
            Some(wrong) => {
                let text = format!(
                    "{op:?}, {way:?}: element {wrong} of {} is wrong",
                    found.len()
                );
                Err(Error::new(ErrorKind::System(text)))
            }
        }
    }

    fn eager(&mut self, op: Op, sets: &mut Sets) -> Result<[f64; WAYS.len()]> {
        medians(|index, calls| {
            let way = WAYS[index];
            let (driver, raw) = (self.driver, self.raw());
            driver.time(raw, || {
                (0..calls).try_for_each(|_| self.call(op, way, sets.of(way)))
            })
        })
    }

    fn replayed(&mut self, op: Op, sets: &mut Sets) -> Result<[f64; WAYS.len()]> {
        let mut graphs = Vec::new();
        for way in WAYS {
            let of = |calls| self.captured(op, way, sets.of(way), calls)?.instantiate();
            graphs.push([1, BATCH].map(of));
        }
        let mut graphs: Vec<[_; 2]> = graphs
            .into_iter()
            .map(|[one, many]| Ok([one?, many?]))
            .collect::<Result<_>>()?;
        medians(|index, calls| {
            let graph = &mut graphs[index][usize::from(calls > 1)];
            // SAFETY: Graphs and eager calls are all on one stream.
            let launch = || unsafe { graph.launch(&self.stream) };
            self.driver.time(self.raw(), launch)
        })
    }

    /// What some calls become in a graph.
    fn captured(
        &mut self,
        op: Op,
        way: Way,
        tensors: &mut Tensors,
        calls: usize,
    ) -> Result<Box<dyn GraphTemplate>> {
        captured(self.cuda, &self.stream.clone(), || {
            (0..calls).try_for_each(|_| self.call(op, way, tensors))
        })
    }

    fn raw(&self) -> *mut c_void {
        raw(&self.stream)
    }

    fn call(&mut self, op: Op, way: Way, tensors: &mut Tensors) -> Result<()> {
        let Tensors { shard, whole } = tensors;
        let path = match way {
            Way::Plain => return self.plain(op, tensors),
            Way::Pooled => Path::ZeroCopy,
            Way::Staged => Path::Staged,
        };
        self.on.set_staging(match way {
            Way::Staged => Staging::Forced,
            _ => Staging::Auto,
        });
        let report = match op {
            Op::AllGather => self.on.all_gather(shard, whole, &self.stream),
            Op::ReduceScatter => self
                .on
                .reduce_scatter(whole, shard, ReduceOp::Sum, &self.stream),
        }?;
        took(report, path)
    }

    fn plain(&self, op: Op, tensors: &Tensors) -> Result<()> {
        let at = |buffer: &Buffer<bf16>| {
            std::ptr::with_exposed_provenance_mut::<c_void>(buffer.operand().addr.value())
        };
        let (shard, whole, count) = (at(&tensors.shard), at(&tensors.whole), tensors.shard.len());
        let (comm, stream) = (
            self.on.communicator().as_raw(),
            nccl_sys::Stream(self.raw()),
        );
        let dtype = DataType::BFLOAT16;
        let called = match op {
            // SAFETY: The whole has room for `count` elements of every rank, and both live as long as
            // this; nothing else uses the communicator meanwhile.
            Op::AllGather => unsafe {
                self.nccl
                    .all_gather(shard, whole, count, dtype, comm, stream)
            },
            // SAFETY: As above.
            Op::ReduceScatter => unsafe {
                self.nccl
                    .reduce_scatter(whole, shard, count, dtype, RedOp::SUM, comm, stream)
            },
        };
        called.map_err(|error| Error::new(ErrorKind::System(error.to_string())))
    }
}

/// Medians of one call, in microseconds; all ways take turns in every round, as `run` makes so many calls
/// of the way with this index.
fn medians(mut run: impl FnMut(usize, usize) -> Result<f64>) -> Result<[f64; WAYS.len()]> {
    let mut times = [const { Vec::new() }; WAYS.len()];
    for round in 0..ROUNDS {
        for index in turns(WAYS.len(), round) {
            // Ranks come together, and what is done once is done.
            let _ = run(index, 1)?;
            #[expect(clippy::cast_precision_loss, reason = "a few calls")]
            times[index].push(run(index, BATCH)? / BATCH as f64);
        }
    }
    Ok(times.map(|times| median(times.into_iter())))
}

fn small(number: usize) -> f32 {
    f32::from(u8::try_from(number).unwrap_or(0))
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn bus_bandwidth(bytes: usize, ranks: usize, microseconds: f64) -> f64 {
    let carried = bytes as f64 * (ranks - 1) as f64 / ranks as f64;
    carried / microseconds / 1e3
}

/// Units as a table.
pub(crate) struct Table<'a>(pub(crate) &'a [Unit]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\none unit of a sharded model, bf16, out of place, microseconds:"
        )?;
        writeln!(
            f,
            "| call | KiB | in | way | time | of plain | GB/s of bus | kernels |"
        )?;
        writeln!(f, "|{}", "---|".repeat(8))?;
        for unit in self.0 {
            let key = |unit: &Unit| (unit.op, unit.bytes, unit.graph);
            let same = |other: &&Unit| key(other) == key(unit);
            let plain = self
                .0
                .iter()
                .filter(same)
                .find(|other| other.way == Way::Plain);
            let plain = plain.map_or(f64::NAN, |plain| plain.microseconds);
            writeln!(
                f,
                "| {:?} | {} | {} | {:?} | {:.1} | {:.2} | {:.1} | {} |",
                unit.op,
                unit.bytes >> 10,
                if unit.graph { "graph" } else { "eager" },
                unit.way,
                unit.microseconds,
                unit.microseconds / plain,
                unit.bus_bandwidth,
                unit.kernels.join(", ")
            )?;
        }
        Ok(())
    }
}
