//! Measures both ways of an operation on the machine as it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Collectives;
use super::calibration::{Calibration, Sample};
use super::effort::Effort;
use super::operation::{Any, Operands};
use super::rows::{MEASURED, Rows};
use crate::agreement::Record;
use crate::buffer::Buffer;
use crate::collective::{Collective, Counts, Op};
use crate::communicator::Communicator;
use crate::dtype::DType;
use crate::error::{CaptureFault, Error, ErrorKind, Field, Result};
use crate::graph::{Capture, Executable};
use crate::outcome;
use crate::path::{Fallback, Path, Staging};
use crate::reduce::ReduceOp;
use crate::scratch::ScratchAllocator;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// Operations that have symmetric kernels, and what is measured of each.
const OPERATIONS: [(Op<'static>, &[DType]); 3] = [
    (Op::AllReduce(ReduceOp::Sum), &MEASURED),
    (Op::ReduceScatter(ReduceOp::Sum), &MEASURED),
    // It calculates nothing.
    (Op::AllGather, MEASURED.split_at(1).0),
];

/// The two ways.
const WAYS: [Staging; 2] = [Staging::Never, Staging::Forced];

impl<C: Communicator, A: ScratchAllocator> Collectives<C, A> {
    /// Measures at which sizes copying through scratch pays for each operation that has symmetric
    /// kernels, eagerly and, where the device has graphs, in a graph, and stages by that; collective, and
    /// blocks.
    ///
    /// The backend's table says where staging pays on the machines its author measured. Where the copies
    /// cost more or less than there, because of a slower host or a faster link, [`Staging::Auto`]
    /// follows what this finds instead. `sizes` are bytes of the larger operand, equal on all ranks; what
    /// is larger than all of them goes by the table still. Scratch for the largest size is taken as a call
    /// of that size takes it, and kept as the policy keeps it, so sizes beyond what is served later are a
    /// waste; a size that the allocator does not serve is left out. Where every graph has scratch of its
    /// own, calibrate before you reserve: graphs that are measured take what is reserved. The stream must be
    /// idle for the figures to mean anything.
    ///
    /// Sums are measured of f32 and of bf16, which kernels widen to calculate. Powers of two from 16 KiB to
    /// 4 MiB take two or three seconds on a GPU; where a call takes milliseconds, each size takes some forty
    /// calls of each operation, and as many in graphs. Between two sizes the smaller one decides, so where
    /// the library changes its kernel between them, pass those that you use.
    ///
    /// # Errors
    ///
    /// The same on every rank: [`Mismatch`](ErrorKind::Mismatch) of [`Field::Configuration`] for different
    /// sizes, and what one rank lacks, memory for operands or for a graph. A call that fails on one rank
    /// alone ends the communicator. Staging stays as it was then.
    pub fn calibrate(&mut self, sizes: &[usize], stream: &mut Stream) -> Result<Calibration> {
        let before = self.switched();
        let measured = self.measure(sizes, stream);
        self.set_staging(before.staging);
        self.set_fallback(before.fallback);
        let calibration = measured.map_err(|error| self.with_context(error, "calibrate"))?;
        self.stage_by(&calibration);
        Ok(calibration)
    }

    /// Stages by what was measured before, or by the table alone if nothing was; every rank passes the
    /// same.
    pub fn stage_by(&mut self, calibration: &Calibration) {
        let mut rows = Rows::of(&self.comm.capabilities().paths, self.world_size);
        rows.calibrate(calibration);
        self.rows = rows;
    }

    fn measure(&mut self, sizes: &[usize], stream: &mut Stream) -> Result<Calibration> {
        let operands = self.operands(sizes, stream)?;
        let mut calibration = Calibration::default();
        if self.world_size == 1 || !self.symmetric {
            return Ok(calibration);
        }
        self.set_fallback(Fallback::Allow);
        let graphs = self.device.graphs().is_some();
        let measured = OPERATIONS.into_iter().flat_map(|(op, dtypes)| {
            let dtypes = dtypes.iter().copied();
            dtypes.map(move |dtype| (op, dtype))
        });
        for (op, dtype) in measured {
            let mut samples = Vec::new();
            for captured in [false, true].into_iter().take(1 + usize::from(graphs)) {
                for &bytes in sizes {
                    if let Some(call) = self.sample_call(op, dtype, bytes, &operands) {
                        samples.extend(self.sample(call, captured, &operands, stream)?);
                    }
                }
            }
            calibration.0.extend(self.slowest(samples)?);
        }
        // What the graphs owned.
        self.device.collect();
        Ok(calibration)
    }

    /// Operands of the largest size, on all ranks or on none.
    fn operands(&mut self, sizes: &[usize], stream: &Stream) -> Result<[Buffer<u8>; 2]> {
        let bytes = sizes.iter().copied().max().unwrap_or(0);
        let make = || Buffer::zeroed(&self.device, bytes, stream);
        let made = match self.device.capture_state(stream) {
            Ok(None) => make().and_then(|one| Ok([one, make()?])),
            Ok(Some(_)) => Err(Error::capture(CaptureFault::AlreadyCapturing)),
            Err(error) => Err(error),
        };
        let mine = Record::new().named(Field::Operation, "calibrate");
        let mine = sizes.iter().fold(mine, |mine, &size| {
            mine.field(Field::Configuration, size as u64)
        });
        self.settled(mine, made)
    }

    /// The operation on operands whose larger one is about `bytes` long, if a symmetric kernel serves it.
    fn sample_call(
        &self,
        op: Op<'static>,
        dtype: DType,
        bytes: usize,
        [send, recv]: &[Buffer<u8>; 2],
    ) -> Option<Collective<'static>> {
        let elements = bytes / dtype.size();
        let (part, ranks) = (elements / self.world_size, self.world_size);
        let (count, sent, received) = match op {
            Op::AllReduce(_) => (elements, elements, elements),
            Op::ReduceScatter(_) => (part, part * ranks, part),
            _ => (part, part, part * ranks),
        };
        let operand = |buffer: &Buffer<u8>, count| buffer.operand().slice(0, count * dtype.size());
        let call = Collective {
            op,
            dtype,
            send: operand(send, sent).ok()?,
            recv: operand(recv, received).ok()?,
            counts: Counts::Even(count),
        };
        (count > 0 && self.rows.find(&call).is_ok()).then_some(call)
    }

    /// This rank's median times of both ways; `None` where scratch is not to be had for it, which is the
    /// same on all ranks.
    fn sample(
        &mut self,
        call: Collective<'_>,
        captured: bool,
        operands: &[Buffer<u8>; 2],
        stream: &mut Stream,
    ) -> Result<Option<Sample>> {
        let bytes = call.send.bytes.max(call.recv.bytes);
        // What is done once is done; and a capture finds its scratch.
        for staging in WAYS {
            self.set_staging(staging);
            let served = self.serves(call, staging, operands, stream);
            if !served.map_err(|error| self.stopped(error, "calibrate"))? {
                return Ok(None);
            }
        }
        let effort = self.effort(call, operands, stream)?;
        let mut graphs = Vec::new();
        if captured {
            match self.recorded(call, effort.batch, operands, stream) {
                Ok(recorded) => graphs = recorded,
                Err(error) if is_refused(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let times = self.time(call, effort, operands, &mut graphs, stream);
        let times = times.map_err(|error| self.stopped(error, "calibrate"))?;
        let [direct, staged] = times.map(|times| each(median(times), effort.batch));
        Ok(Some(Sample {
            op: call.kind(),
            dtype: call.dtype,
            captured,
            bytes,
            direct,
            staged,
        }))
    }

    /// What can be measured of a call in time, the same on all ranks.
    fn effort(
        &mut self,
        call: Collective<'_>,
        operands: &[Buffer<u8>; 2],
        stream: &Stream,
    ) -> Result<Effort> {
        // Alone and in several rounds, or one hiccup of one rank would decide.
        let alone = Effort {
            rounds: 3,
            batch: 1,
        };
        let times = self.time(call, alone, operands, &mut [], stream);
        let times = times.map_err(|error| self.stopped(error, "calibrate"))?;
        let took = times.map(median).into_iter().max().unwrap_or_default();
        let mine = Record::new().named(Field::Operation, "calibrate");
        let records = self
            .comm
            .agree(&mine.fact(nanoseconds(took)), self.deadline)?;
        Record::check_equal(&records)?;
        Ok(Effort::affordable(slowest(&records, 0)))
    }

    /// Times of both ways in rounds of so many operations each, eagerly or by a graph a way.
    fn time(
        &mut self,
        call: Collective<'_>,
        Effort { rounds, batch }: Effort,
        operands: &[Buffer<u8>; 2],
        graphs: &mut [Executable],
        stream: &Stream,
    ) -> Result<[Vec<Duration>; 2]> {
        let device = Arc::clone(&self.device);
        let mut times = [const { Vec::new() }; 2];
        for round in 0..=rounds {
            for (way, staging) in WAYS.into_iter().enumerate() {
                self.set_staging(staging);
                let mut once = |count: usize, this: &mut Self| match graphs.get_mut(way) {
                    Some(graph) => graph.launch(&*device, stream),
                    None => {
                        (0..count).try_for_each(|_| this.run_on(call, operands, stream).map(drop))
                    }
                };
                // Ranks come together first.
                once(1, self)?;
                device.synchronize(stream)?;
                let begun = Instant::now();
                once(batch, self)?;
                device.synchronize(stream)?;
                // The first round only warms up.
                if round > 0 {
                    times[way].push(begun.elapsed());
                }
            }
        }
        Ok(times)
    }

    /// Whether a call takes the way it is told to, which is the same on all ranks.
    fn serves(
        &mut self,
        call: Collective<'_>,
        staging: Staging,
        operands: &[Buffer<u8>; 2],
        stream: &Stream,
    ) -> Result<bool> {
        match self.run_on(call, operands, stream) {
            Ok(path) => Ok(staging == Staging::Never || path == Path::Staged),
            Err(error) if is_refused(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn run_on(
        &mut self,
        call: Collective<'_>,
        [send, recv]: &[Buffer<u8>; 2],
        stream: &Stream,
    ) -> Result<Path> {
        let mut owners = Vec::with_capacity(2);
        owners.extend(send.owner());
        owners.extend(recv.owner());
        let (operation, operands) = (Any::of(&call), Operands::of_call(&call));
        self.run(operation, operands, &mut owners, stream)
            .map(|report| report.path)
    }

    /// A graph of `count` operations for each way, on all ranks or on none.
    fn recorded(
        &mut self,
        call: Collective<'_>,
        count: usize,
        operands: &[Buffer<u8>; 2],
        stream: &mut Stream,
    ) -> Result<Vec<Executable>> {
        let device = Arc::clone(&self.device);
        let graphs = WAYS.into_iter().map(|staging| {
            self.set_staging(staging);
            let capture = Capture::begin(&*device, stream)?;
            for _ in 0..count {
                let _path = self.run_on(call, operands, capture.stream())?;
            }
            capture.end()?.instantiate()
        });
        let graphs = graphs.collect();
        let mine = Record::new().named(Field::Operation, "calibrate");
        self.settled(mine, graphs)
    }

    /// What this rank made, if every rank has made it, or the same error everywhere.
    fn settled<T>(&mut self, mine: Record, made: Result<T>) -> Result<T> {
        let mine = outcome::facts(&made).into_iter().fold(mine, Record::fact);
        let records = self.comm.agree(&mine, self.deadline)?;
        Record::check_equal(&records)?;
        outcome::settle(made, &records)
    }

    /// Samples with the times of the slowest rank, the same on all ranks.
    fn slowest(&mut self, mut samples: Vec<Sample>) -> Result<Vec<Sample>> {
        let mine = Record::new()
            .named(Field::Operation, "calibrate")
            .field(Field::Count, samples.len() as u64);
        let times = samples
            .iter()
            .flat_map(|sample| [sample.direct, sample.staged]);
        let mine = times.map(nanoseconds).fold(mine, Record::fact);
        let records = self.comm.agree(&mine, self.deadline)?;
        Record::check_equal(&records)?;
        for (index, sample) in samples.iter_mut().enumerate() {
            sample.direct = slowest(&records, 2 * index);
            sample.staged = slowest(&records, 2 * index + 1);
        }
        Ok(samples)
    }
}

/// Whether scratch was not to be had, as all ranks find alike.
fn is_refused(error: &Error) -> bool {
    let refused = matches!(
        error.kind(),
        ErrorKind::NeedsReserve { .. } | ErrorKind::Refused { .. } | ErrorKind::OutOfMemory { .. }
    );
    refused && !error.poisons()
}

/// The longest time that a rank says at this place.
fn slowest(records: &[Record], at: usize) -> Duration {
    let said = records.iter().filter_map(|record| record.facts().get(at));
    Duration::from_nanos(said.copied().max().unwrap_or(0))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// The time of one of `count` operations.
fn each(all: Duration, count: usize) -> Duration {
    all / u32::try_from(count).unwrap_or(u32::MAX)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
