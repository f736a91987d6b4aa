//! Staging by what was measured.

use std::thread;
use std::time::Duration;

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collective::OpKind;
use collectives_core::collectives::{Calibration, Collectives, Sample};
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::error::{ErrorKind, Field, Result};
use collectives_core::path::{Fallback, Path, Staging};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::ScratchAllocator;
use collectives_core::stream::Stream;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use half::f16;
use rstest::rstest;

use crate::{all, ranks, world};

const KIB: usize = 1 << 10;

/// What is measured of each size: two sums of two element types each, and a gather.
const KINDS: usize = 5;

/// Which way an all-reduce of this many bytes goes, after checking what it computes.
fn way<C: Communicator, A: ScratchAllocator>(
    collectives: &mut Collectives<C, A>,
    bytes: usize,
    stream: &Stream,
) -> Result<Path> {
    let ones = vec![1_u32; bytes / 4];
    let mut tensor = Buffer::from_slice(collectives.device(), &ones, stream)?;
    let report = collectives.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
    let sum = u32::try_from(collectives.world_size()).unwrap();
    assert!(tensor.read(stream)?.iter().all(|&value| value == sum));
    Ok(report.path)
}

#[test]
fn calls_go_as_was_measured_and_by_the_table_again() {
    let sample = |bytes, direct, staged| Sample {
        dtype: DType::F32,
        op: OpKind::AllReduce,
        captured: false,
        bytes,
        direct: Duration::from_micros(direct),
        staged: Duration::from_micros(staged),
    };
    let samples = [(KIB, 10, 20), (4 * KIB, 30, 20), (32 * KIB, 40, 50)];
    let samples = samples.map(|(bytes, direct, staged)| sample(bytes, direct, staged));
    let measured = Calibration(samples.to_vec());
    let paths = all(Inline, 2, |collectives, stream| {
        collectives.stage_by(&measured);
        let mut paths = Vec::new();
        for bytes in [KIB, 4 * KIB - 4, 4 * KIB, 32 * KIB, 64 * KIB] {
            paths.push(way(collectives, bytes, stream)?);
        }
        collectives.stage_by(&Calibration::default());
        paths.push(way(collectives, KIB, stream)?);
        Ok(paths)
    });
    let (direct, staged) = (Path::Direct, Path::Staged);
    // What is larger than every sample goes by the table, which stages everything here.
    let expected = [direct, direct, staged, direct, staged, staged];
    assert!(paths.iter().all(|paths| *paths == expected), "{paths:?}");
}

#[test]
fn what_kernels_widen_goes_as_was_measured_for_it() {
    let sample = |dtype, direct, staged| Sample {
        dtype,
        op: OpKind::AllReduce,
        captured: false,
        bytes: KIB,
        direct: Duration::from_micros(direct),
        staged: Duration::from_micros(staged),
    };
    let (plain, widened) = (sample(DType::F32, 10, 20), sample(DType::Bf16, 20, 10));
    for (samples, half) in [
        (vec![plain, widened], Path::Staged),
        // What was not measured of it goes as the others do.
        (vec![plain], Path::Direct),
    ] {
        let measured = Calibration(samples);
        let paths = all(Inline, 2, |collectives, stream| {
            collectives.stage_by(&measured);
            let ones = vec![f16::ONE; KIB / 2];
            let mut tensor = Buffer::from_slice(collectives.device(), &ones, stream)?;
            let halves = collectives.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
            Ok([way(collectives, KIB, stream)?, halves.path])
        });
        let expected = [Path::Direct, half];
        assert!(paths.iter().all(|paths| *paths == expected), "{paths:?}");
    }
}

#[rstest]
fn every_rank_measures_and_all_take_the_slowest(
    #[values(Inline, Asynchronous)] mode: StreamMode,
    #[values(Fallback::Allow, Fallback::Forbid)] fallback: Fallback,
) {
    let sizes = [KIB, 16 * KIB];
    let said = all(mode, 3, |collectives, stream| {
        collectives.set_fallback(fallback);
        collectives.set_staging(Staging::Never);
        let before = collectives.switched();
        let measured = collectives.calibrate(&sizes, stream)?;
        assert_eq!(collectives.switched(), before);
        // No graph of it lives on: destructors run on a thread of their own, and ranks trim alike.
        let mut trims = 0..1000;
        while collectives.trim()?.held_bytes > 0 {
            assert!(trims.next().is_some(), "{:?}", collectives.stats());
            thread::sleep(Duration::from_millis(1));
        }
        Ok(measured)
    });
    assert!(said.iter().all(|measured| *measured == said[0]), "{said:?}");
    // Eagerly and in a graph; parts of three ranks are whole elements.
    let samples = &said[0].0;
    assert_eq!(samples.len(), KINDS * 2 * sizes.len());
    for (op, bytes, dtypes) in [
        (OpKind::AllReduce, KIB, &[DType::F32, DType::Bf16][..]),
        (
            OpKind::ReduceScatter,
            KIB / 12 * 12,
            &[DType::F32, DType::Bf16],
        ),
        (OpKind::AllGather, KIB / 12 * 12, &[DType::F32]),
    ] {
        for captured in [false, true] {
            let of_this = |sample: &&Sample| {
                (sample.op, sample.captured, sample.bytes) == (op, captured, bytes)
            };
            let found = samples.iter().filter(of_this).map(|sample| sample.dtype);
            assert_eq!(
                found.collect::<Vec<_>>(),
                dtypes,
                "{op}, captured {captured}"
            );
        }
    }
}

#[test]
fn a_rank_with_other_sizes_is_found_and_it_may_be_tried_again() {
    let errors = ranks(Inline, 3, "geometric", |collectives, stream| {
        let mine: &[usize] = match collectives.rank() {
            Rank(1) => &[KIB],
            _ => &[KIB, 2 * KIB],
        };
        let error = collectives.calibrate(mine, stream).unwrap_err();
        let again = collectives.calibrate(&[KIB], stream)?;
        Ok((error, again))
    });
    for result in errors {
        let (error, again) = result.unwrap();
        let odd = matches!(
            error.kind(),
            ErrorKind::Mismatch {
                rank: Rank(1),
                field: Field::Configuration,
                ..
            }
        );
        assert!(odd && !error.poisons(), "{error}");
        assert_eq!(again.0.len(), KINDS * 2);
    }
}

#[rstest]
fn what_scratch_does_not_serve_is_left_out(
    #[values("cap = \"4KiB\"", "limit = \"2MiB\"")] bound: &str,
) {
    let toml = format!("[scratch]\npolicy = \"geometric\"\n{bound}\n");
    let samples = world(Inline, 2).run(|comm| -> Result<_> {
        let mut collectives = Collectives::new(comm, ScratchConfig::from_toml(&toml)?.build()?);
        let mut stream = collectives.device().create_stream()?;
        let measured = collectives.calibrate(&[4 * KIB, 4 * KIB * KIB], &mut stream)?;
        drop(stream);
        let _deferred = collectives.close()?;
        Ok(measured.0)
    });
    for samples in samples {
        let samples = samples.unwrap();
        assert_eq!(samples.len(), KINDS * 2);
        assert!(samples.iter().all(|sample| sample.bytes == 4 * KIB));
    }
}

#[test]
fn nothing_is_measured_alone_and_nothing_that_a_sealed_pool_lacks() {
    let alone = all(Inline, 1, |collectives, stream| {
        collectives.calibrate(&[KIB], stream)
    });
    assert_eq!(alone, [Calibration::default()]);
    all(Inline, 2, |collectives, stream| {
        collectives.seal();
        assert_eq!(
            collectives.calibrate(&[KIB], stream)?,
            Calibration::default()
        );
        assert_eq!(collectives.switched().staging, Staging::Auto);
        Ok(())
    });
}
