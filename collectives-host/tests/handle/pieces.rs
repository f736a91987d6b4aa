//! Calls that are staged in pieces: the bits of whole calls, one lease, and what failures leave.

use std::fmt::Debug;
use std::sync::Arc;

use collectives_alloc::bytes::ByteSize;
use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collective::Op;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::dtype::{DType, Element};
use collectives_core::error::{Error, ErrorKind, Field, Misuse, Result};
use collectives_core::graph::Capture;
use collectives_core::layered::{Layer, Layered};
use collectives_core::path::{Averaging, OpReport, Path, Reason, Staging};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_core::stream::Stream;
use collectives_core::submission::Submission;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use rstest::rstest;

use crate::rooted::Rooted;

const ALIGNMENT: usize = 4096;

type Handle<C> = Collectives<C, Box<dyn ScratchAllocator>>;

/// A handle that always stages, in pieces of so many bytes if any.
fn handle<C: Communicator>(comm: C, piece: Option<usize>) -> Result<Handle<C>> {
    let mut config = ScratchConfig::with_policy("geometric");
    config.piece = piece.map(ByteSize::new);
    let mut handle = Collectives::new(comm, config.build()?);
    handle.set_staging(Staging::Forced);
    Ok(handle)
}

/// The contents of both tensors of a call.
type Bits<T> = (Vec<T>, Vec<T>);

/// An operation and where its result goes.
#[derive(Clone, Copy, Debug)]
enum Kind {
    AllReduce(ReduceOp),
    AllReduceInto,
    ReduceScatter { in_place: bool },
    AllGather { in_place: bool },
    Broadcast,
    Reduce,
}

/// A call and its tensors: all of them, to be compared.
struct Trial<T: Element> {
    kind: Kind,
    whole: Buffer<T>,
    other: Buffer<T>,
}

impl<T: Element> Trial<T> {
    fn new<C: Communicator>(
        kind: Kind,
        count: usize,
        on: &Handle<C>,
        stream: &Stream,
    ) -> Result<Self> {
        let (device, rank, world) = (on.device(), on.rank().index(), on.world_size());
        let total = match kind {
            Kind::ReduceScatter { .. } | Kind::AllGather { .. } => count * world,
            _ => count,
        };
        let whole = Buffer::zeroed(device, total, stream)?;
        let mine = rank * count..(rank + 1) * count;
        let other = match kind {
            Kind::ReduceScatter { in_place: true } | Kind::AllGather { in_place: true } => {
                whole.slice(mine)?
            }
            _ => Buffer::zeroed(device, count, stream)?,
        };
        Ok(Self { kind, whole, other })
    }

    fn fill(&mut self, seed: usize, of: fn(usize) -> T, stream: &Stream) -> Result<()> {
        let values = |len: usize| Vec::from_iter((0..len).map(|index| of(index * 31 + seed)));
        self.whole.write(&values(self.whole.len()), stream)?;
        self.other.write(&values(self.other.len()), stream)
    }

    fn call<C: Communicator>(&mut self, on: &mut Handle<C>, stream: &Stream) -> Result<OpReport> {
        let Self { kind, whole, other } = self;
        match *kind {
            Kind::AllReduce(op) => on.all_reduce(whole, op, stream),
            Kind::AllReduceInto => on.all_reduce_into(whole, other, ReduceOp::Sum, stream),
            Kind::ReduceScatter { .. } => on.reduce_scatter(whole, other, ReduceOp::Sum, stream),
            Kind::AllGather { .. } => on.all_gather(other, whole, stream),
            Kind::Broadcast => on.broadcast(whole, Rank(1), stream),
            Kind::Reduce => on.reduce(whole, ReduceOp::Sum, Rank(1), stream),
        }
    }

    fn bits(&self, stream: &Stream) -> Result<Bits<T>> {
        Ok((self.whole.read(stream)?, self.other.read(stream)?))
    }
}

/// Everything that eager calls and replays leave in the tensors, and the last report.
fn outcome<T: Element, C: Communicator>(
    on: &mut Handle<C>,
    stream: &mut Stream,
    (kind, count): (Kind, usize),
    of: fn(usize) -> T,
) -> Result<(Vec<Bits<T>>, OpReport)> {
    let device = Arc::clone(on.device());
    let rank = on.rank().index();
    let mut trial = Trial::new(kind, count, on, stream)?;
    trial.fill(rank, of, stream)?;
    let report = trial.call(on, stream)?;
    let mut bits = vec![trial.bits(stream)?];
    let capture = Capture::begin(&*device, stream)?;
    let captured = trial.call(on, capture.stream())?;
    assert_eq!(captured, report);
    let mut graph = capture.end()?.instantiate()?;
    for round in 1..=2 {
        trial.fill(rank + 7 * round, of, stream)?;
        graph.launch(&*device, stream)?;
        bits.push(trial.bits(stream)?);
        // Growth between replays.
        let _plan = on.reserve(&[Request::new(round << 22)])?;
    }
    Ok((bits, report))
}

fn compare<T: Element + PartialEq + Debug>(
    mode: StreamMode,
    world: usize,
    kind: Kind,
    of: fn(usize) -> T,
) {
    let piece = 2 * ALIGNMENT * (world + 1);
    let fit = piece / T::DTYPE.size();
    let results = crate::world(mode, world).run(|mut comm| {
        let child = comm.split(Some(0), 0)?.unwrap();
        let mut split = handle(Rooted::around(comm), Some(piece))?;
        let mut whole = handle(Rooted::around(child), None)?;
        let mut stream = split.device().create_stream()?;
        for elements in [fit - 1, fit, fit + 1, 2 * fit, 3 * fit + 5] {
            let (count, parts) = match kind {
                Kind::ReduceScatter { .. } | Kind::AllGather { .. } => {
                    (elements.div_ceil(world), world)
                }
                _ => (elements, 1),
            };
            let before = split.stats();
            let (expected, all) = outcome(&mut whole, &mut stream, (kind, count), of)?;
            let (found, report) = outcome(&mut split, &mut stream, (kind, count), of)?;
            assert!(found == expected, "{kind:?} of {count} differs");
            let needs = count * parts * T::DTYPE.size();
            assert_eq!((all.path, all.pieces), (Path::Staged, 1));
            assert_eq!((report.path, report.bytes), (Path::Staged, all.bytes));
            assert_eq!(report.pieces > 1, needs > piece, "{report:?}");
            let since = split.stats().since(&before);
            let counted = if needs > piece {
                2 * u64::from(report.pieces)
            } else {
                0
            };
            assert_eq!((since.pieces, since.requests), (counted, 2));
        }
        assert_eq!(split.stats().largest_request, piece);
        assert_eq!(whole.stats().pieces, 0);
        drop(stream);
        let _deferred = (whole.close()?, split.close()?);
        Ok(())
    });
    for result in results {
        let result: Result<()> = result;
        result.unwrap();
    }
}

#[rstest]
fn every_operation_leaves_the_bits_of_a_whole_call(
    #[values(2, 3)] world: usize,
    #[values(Inline, Asynchronous)] mode: StreamMode,
    #[values(
        Kind::AllReduce(ReduceOp::Sum),
        Kind::AllReduce(ReduceOp::Average),
        Kind::AllReduceInto,
        Kind::ReduceScatter { in_place: false },
        Kind::ReduceScatter { in_place: true },
        Kind::AllGather { in_place: false },
        Kind::AllGather { in_place: true },
        Kind::Broadcast,
        Kind::Reduce
    )]
    kind: Kind,
) {
    // Sums of these are rounded, so that their bits depend on the order of ranks.
    compare::<f32>(mode, world, kind, |index| (index % 1013) as f32 * 0.1);
    compare::<f64>(mode, world, kind, |index| (index % 911) as f64 * 0.7);
    compare::<u8>(mode, world, kind, |index| u8::try_from(index % 61).unwrap());
}

#[rstest]
fn averages_of_equal_parts_go_in_pieces(
    #[values(Averaging::Native, Averaging::SumThenScale)] averaging: Averaging,
) {
    let results = crate::world(Inline, 2).run(|comm| {
        let mut on = handle(comm, Some(2 * ALIGNMENT))?;
        on.set_averaging(averaging);
        let device = Arc::clone(on.device());
        let stream = device.create_stream()?;
        let mine = on.rank().0 as f32;
        let whole = Buffer::from_slice(&device, &[2.0 * mine; 10_000], &stream)?;
        let mut part = Buffer::<f32>::zeroed(&device, 5_000, &stream)?;
        let averaged = on.reduce_scatter_average(&whole, &mut part, &[5_000; 2], &stream)?;
        assert_eq!(averaged.report.pieces, 5);
        let expected = averaged.divide_by.map_or(1.0, |_| 2.0);
        assert_eq!(part.read(&stream)?, [expected; 5_000]);
        let _deferred = on.close()?;
        Ok(())
    });
    for result in results {
        let result: Result<()> = result;
        result.unwrap();
    }
}

#[test]
fn what_cannot_be_cut_is_staged_whole_within_the_cap() {
    let results = crate::world(Inline, 2).run(|comm| {
        let mut config = ScratchConfig::default();
        (config.piece, config.cap) = (Some(ByteSize::new(8192)), Some(ByteSize::new(40_000)));
        let mut on = Collectives::new(comm, config.build()?);
        let device = Arc::clone(on.device());
        let stream = device.create_stream()?;
        // Unequal parts, and a group.
        let whole = Buffer::from_slice(&device, &[1_u8; 30_001], &stream)?;
        let counts = [15_000, 15_001];
        let mut part = Buffer::<u8>::zeroed(&device, counts[on.rank().index()], &stream)?;
        let sum = ReduceOp::Sum;
        let report = on.reduce_scatter_v(&whole, &mut part, &counts, sum, &stream)?;
        assert_eq!((report.path, report.pieces), (Path::Staged, 1));
        assert_eq!(on.stats().largest_request, 30_001);
        let mut tensor = Buffer::from_slice(&device, &[1_u8; 20_000], &stream)?;
        let reports = on.group(&stream, |group| {
            group.all_reduce(&mut tensor, sum).map(drop)
        })?;
        assert_eq!(reports[0].pieces, 1);
        assert_eq!(tensor.read(&stream)?, [2; 20_000]);
        // Up to the cap in pieces, and above it not at all.
        for (count, pieces) in [(8192, 1), (8193, 2), (40_000, 5), (40_001, 0)] {
            let mut tensor = Buffer::from_slice(&device, &vec![1_u8; count], &stream)?;
            let report = on.all_reduce(&mut tensor, sum, &stream)?;
            assert_eq!(report.pieces, pieces, "{report:?}");
            let reason = if pieces > 0 {
                Reason::StagingPays
            } else {
                Reason::OverCap
            };
            assert_eq!(report.reason, reason);
            assert!(tensor.read(&stream)?.iter().all(|&value| value == 2));
            let request = on.request_for(Op::AllReduce(sum), DType::U8, count)?;
            let lease = if pieces > 0 { count.min(8192) } else { count };
            assert_eq!(request, Some(Request::new(lease)));
        }
        assert_eq!(on.stats().pieces, 7);
        let _deferred = on.close()?;
        Ok(())
    });
    for result in results {
        let result: Result<()> = result;
        result.unwrap();
    }
}

#[test]
fn ranks_with_other_pieces_are_told_so() {
    let results = crate::world(Inline, 3).run(|comm| {
        let piece = if comm.info().rank == Rank(1) {
            8192
        } else {
            4096
        };
        let mut on = handle(comm, Some(piece))?;
        let device = Arc::clone(on.device());
        let stream = device.create_stream()?;
        let mut tensor = Buffer::from_slice(&device, &[1_u8; 10_000], &stream)?;
        Ok(on
            .all_reduce(&mut tensor, ReduceOp::Sum, &stream)
            .unwrap_err())
    });
    for error in results {
        let error: Result<Error> = error;
        let error = error.unwrap();
        let ErrorKind::Mismatch { rank, field, .. } = error.kind() else {
            panic!("{error}");
        };
        assert_eq!((*rank, *field), (Rank(1), Field::Configuration));
    }
}

/// Refuses one operation on one rank, or what is copied out after it.
#[derive(Debug)]
struct Refuses {
    which: usize,
    copy_out: bool,
    seen: usize,
}

impl Layer for Refuses {
    fn before_enqueue(
        &mut self,
        inner: &mut dyn Communicator,
        submission: &Submission<'_>,
    ) -> Result<()> {
        let concerns = submission.calls.is_empty() == self.copy_out;
        self.seen += usize::from(concerns);
        if concerns && inner.info().rank == Rank(1) && self.seen == self.which {
            return Err(Misuse::Other("on purpose".to_owned()).into());
        }
        Ok(())
    }

    fn for_child(&self) -> Self {
        Self { ..*self }
    }
}

#[rstest]
#[case::first(1, false)]
#[case::out_of_the_first(1, true)]
#[case::second(2, false)]
#[case::last(4, false)]
#[case::out_of_the_third(3, true)]
fn a_piece_that_fails_ends_the_communicator_unless_nothing_had_moved(
    #[case] which: usize,
    #[case] copy_out: bool,
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let moved = which > 1 || copy_out;
    let results = crate::world(mode, 3).run(|comm| {
        let layer = Refuses {
            which,
            copy_out,
            seen: 0,
        };
        let mut on = handle(Layered::new(layer, comm), Some(ALIGNMENT))?;
        let device = Arc::clone(on.device());
        let stream = device.create_stream()?;
        let mut tensor = Buffer::from_slice(&device, &[1_u8; 4 * ALIGNMENT], &stream)?;
        let fails = on.rank() == Rank(1);
        let mut result = on.all_reduce(&mut tensor, ReduceOp::Sum, &stream);
        if fails {
            let error = result.unwrap_err();
            assert_eq!(
                error.misuse(),
                Some(&Misuse::Other("on purpose".to_owned()))
            );
            assert_eq!(error.operation(), Some("all_reduce"));
            assert_eq!(error.poisons(), moved, "{error}");
            assert_eq!(on.stats().pieces, which as u64 - 1);
            assert!(!on.stats().slots[0].leased);
            // If nothing had moved it may be made again, and meets the others.
            result = on.all_reduce(&mut tensor, ReduceOp::Sum, &stream);
        }
        if !moved {
            result?;
            assert_eq!(tensor.read(&stream)?, [3; 4 * ALIGNMENT]);
            drop((tensor, stream));
            return on.close().map(drop);
        }
        let error = crate::error_of(result, &*device, &stream);
        assert!(error.poisons(), "{error}");
        assert!(on.health().unwrap_err().poisons());
        Ok(())
    });
    for result in results {
        let result: Result<()> = result;
        result.unwrap();
    }
}
