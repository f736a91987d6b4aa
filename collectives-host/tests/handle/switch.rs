//! What a framework flips between steps, and what becomes of ranks that flip it differently.

use std::sync::Arc;
use std::time::Duration;

use collectives_alloc::config::ScratchConfig;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::{Collectives, Switch};
use collectives_core::communicator::Communicator;
use collectives_core::error::{Error, ErrorKind, Field, Result};
use collectives_core::path::{Averaging, Fallback, Path, Staging};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Request, ScratchAllocator};
use collectives_core::stream::Stream;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use rstest::rstest;

use crate::{Handle, all, device, error_of, world};

/// Rank 1 is the odd one of three.
const ODD: Rank = Rank(1);
/// Elements of a shard.
const PART: usize = 1000;

fn settings(staging: Staging, fallback: Fallback, averaging: Averaging) -> Switch {
    Switch {
        staging,
        fallback,
        averaging,
    }
}

const USUAL: Switch = Switch {
    staging: Staging::Forced,
    fallback: Fallback::Forbid,
    averaging: Averaging::Native,
};

fn odd(differing: Switch, collectives: &Handle) -> Switch {
    match collectives.rank() {
        ODD => differing,
        _ => USUAL,
    }
}

/// Gathers and averages, and checks every element.
fn step(
    collectives: &mut Collectives<impl Communicator, impl ScratchAllocator>,
    stream: &Stream,
) -> Result<[Path; 2]> {
    let device = Arc::clone(collectives.device());
    let ranks = collectives.world_size();
    let mine = vec![collectives.rank().0 + 1; PART];
    let shard = Buffer::from_slice(&device, &mine, stream)?;
    let mut whole = Buffer::<u32>::zeroed(&device, PART * ranks, stream)?;
    let gathered = collectives.all_gather(&shard, &mut whole, stream)?;
    let values = whole.read(stream)?;
    assert!((0..values.len()).all(|at| values[at] as usize == at / PART + 1));
    let gradients = Buffer::from_slice(&device, &vec![6.0_f32; PART * ranks], stream)?;
    let mut average = Buffer::<f32>::zeroed(&device, PART, stream)?;
    let counts = vec![PART; ranks];
    let scattered =
        collectives.reduce_scatter_average(&gradients, &mut average, &counts, stream)?;
    #[expect(clippy::cast_precision_loss, reason = "a few ranks")]
    let divided = scattered.divide_by.map_or(6.0, |by| 6.0 * by as f32);
    assert_eq!(average.read(stream)?, [divided; PART]);
    Ok([gathered.path, scattered.report.path])
}

#[rstest]
fn settings_change_between_steps_without_a_new_slot(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, 3, |collectives, stream| {
        assert_eq!(collectives.switched(), Switch::default());
        collectives.switch(USUAL)?;
        assert_eq!(step(collectives, stream)?, [Path::Staged; 2]);
        let kept = collectives.stats();
        for _ in 0..10 {
            let sum = Averaging::SumThenScale;
            let off = settings(Staging::Never, Fallback::Allow, sum);
            collectives.switch(off)?;
            assert_eq!(collectives.switched(), off);
            assert_eq!(step(collectives, stream)?, [Path::Direct; 2]);
            collectives.switch(settings(Staging::Never, Fallback::Forbid, sum))?;
            let error = step(collectives, stream).unwrap_err();
            let forbidden = matches!(error.kind(), ErrorKind::FallbackForbidden { .. });
            assert!(forbidden && !error.poisons(), "{error}");
            collectives.switch(USUAL)?;
            assert_eq!(step(collectives, stream)?, [Path::Staged; 2]);
        }
        assert_eq!(collectives.stats().slots.len(), kept.slots.len());
        assert_eq!(collectives.stats().registrations, kept.registrations);
        Ok(())
    });
}

#[rstest]
#[case::staging(settings(Staging::Never, USUAL.fallback, USUAL.averaging), "Never")]
#[case::fallback(settings(USUAL.staging, Fallback::Allow, USUAL.averaging), "Allow")]
#[case::averaging(settings(USUAL.staging, USUAL.fallback, Averaging::Auto), "Auto")]
fn a_switch_that_ranks_set_differently_is_one_error_and_changes_nothing(
    #[case] differing: Switch,
    #[case] named: &str,
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let errors = all(mode, 3, |collectives, stream| {
        let to = odd(differing, collectives);
        let error = collectives.switch(to).unwrap_err();
        assert!(!error.poisons());
        assert_eq!(collectives.switched(), Switch::default());
        step(collectives, stream)?;
        collectives.switch(USUAL)?;
        assert_eq!(step(collectives, stream)?, [Path::Staged; 2]);
        Ok(error)
    });
    for error in &errors {
        assert_eq!(error.kind(), errors[0].kind());
        let ErrorKind::Mismatch {
            rank,
            field: Field::Configuration,
            theirs,
            ..
        } = error.kind()
        else {
            panic!("{error}");
        };
        assert!(*rank == ODD && theirs.contains(named), "{error}");
    }
}

/// What becomes of calls where one rank flipped a setting alone, without asking the others.
fn alone(
    mode: StreamMode,
    set: fn(&mut Handle),
    call: fn(&mut Handle, &Stream) -> Result<Error>,
) -> Vec<Error> {
    all(mode, 3, |collectives, _| {
        // Everything is a hit, so that the pool finds nothing.
        let _plan = collectives.reserve(&[Request::new(1 << 16)])?;
        collectives.switch(settings(
            Staging::Forced,
            Fallback::Allow,
            Averaging::Native,
        ))?;
        if collectives.rank() == ODD {
            set(collectives);
        }
        let stream = collectives.device().create_stream()?;
        let error = call(collectives, &stream)?;
        assert!(!error.poisons(), "{error}");
        // An asynchronous stream keeps its error; the step is tried again on another.
        let stream = collectives.device().create_stream()?;
        collectives.switch(USUAL)?;
        assert_eq!(step(collectives, &stream)?, [Path::Staged; 2]);
        Ok(error)
    })
}

fn gather(collectives: &mut Handle, stream: &Stream) -> Result<Error> {
    let device = device(collectives);
    let shard = Buffer::from_slice(&device, &[1_u8; PART], stream)?;
    let mut whole = Buffer::from_slice(&device, &[9_u8; 3 * PART], stream)?;
    let result = collectives.all_gather(&shard, &mut whole, stream);
    let error = error_of(result, &*device, stream);
    assert_eq!(whole.read(&device.create_stream()?)?, [9; 3 * PART]);
    Ok(error)
}

fn scatter(collectives: &mut Handle, stream: &Stream) -> Result<Error> {
    let device = device(collectives);
    let whole = Buffer::from_slice(&device, &[1.0_f32; 3 * PART], stream)?;
    let mut shard = Buffer::from_slice(&device, &[9.0_f32; PART], stream)?;
    let result = collectives.reduce_scatter_average(&whole, &mut shard, &[PART; 3], stream);
    let error = error_of(result, &*device, stream);
    assert_eq!(shard.read(&device.create_stream()?)?, [9.0; PART]);
    Ok(error)
}

#[rstest]
#[case::staging_of_a_gather(|on: &mut Handle| on.set_staging(Staging::Never), gather, Field::Window)]
#[case::staging_of_a_scatter(|on: &mut Handle| on.set_staging(Staging::Never), scatter, Field::Window)]
#[case::forced_sum(|on: &mut Handle| on.set_averaging(Averaging::SumThenScale), scatter, Field::Reduction)]
fn a_setting_that_one_rank_flips_alone_is_one_error_and_moves_nothing(
    #[case] set: fn(&mut Handle),
    #[case] call: fn(&mut Handle, &Stream) -> Result<Error>,
    #[case] field: Field,
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let errors = alone(mode, set, call);
    for error in &errors {
        assert_eq!(error.kind(), errors[0].kind());
        let ErrorKind::Mismatch {
            rank, field: found, ..
        } = error.kind()
        else {
            panic!("{error}");
        };
        assert_eq!((*rank, *found), (ODD, field));
    }
}

/// Makes a call again where it timed out: a rank that was absent from a call that the others gave up
/// meets that call first, and has caught up then.
fn caught_up<R>(mut call: impl FnMut() -> Result<R>) -> Result<R> {
    for _ in 0..5 {
        match call() {
            Err(error) if matches!(error.kind(), ErrorKind::Timeout { .. }) => {}
            outcome => return outcome,
        }
    }
    call()
}

/// The next call in which ranks meet tells all of them that their calls are out of order.
fn is_out_of_order(collectives: &mut Handle) -> Result<Error> {
    let error = caught_up(|| collectives.switch(USUAL)).unwrap_err();
    let field = match error.kind() {
        ErrorKind::Mismatch {
            rank: ODD, field, ..
        } => Some(*field),
        _ => None,
    };
    assert_eq!(field, Some(Field::Order), "{error}");
    assert!(error.poisons() && collectives.health().is_err());
    Ok(error)
}

/// The odd rank forbids what the others do: it refuses at once, and they wait for it in vain, until they see
/// it in another call, where they can.
#[rstest]
fn a_fallback_that_one_rank_forbids_alone_is_an_error_on_every_rank(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let world = world(mode, 3).deadline(deadline(mode));
    let errors: Vec<Result<(Error, Error)>> = world.run(|comm| {
        let mut collectives = Collectives::new(comm, ScratchConfig::default().build()?);
        let device = device(&collectives);
        collectives.set_staging(Staging::Never);
        if collectives.rank() == ODD {
            collectives.set_fallback(Fallback::Forbid);
        }
        let stream = device.create_stream()?;
        let error = scatter(&mut collectives, &stream)?;
        let later = is_out_of_order(&mut collectives)?;
        Ok((error, later))
    });
    let mut told = Vec::new();
    for (rank, outcome) in errors.into_iter().enumerate() {
        let (error, later) = outcome.unwrap();
        told.push(later.kind().clone());
        match (error.kind(), mode) {
            (ErrorKind::FallbackForbidden { .. }, _) => assert_eq!(rank, ODD.index()),
            (ErrorKind::Timeout { absent, .. }, Asynchronous) => assert_eq!(*absent, [ODD]),
            (kind, Inline) => assert_eq!(kind, later.kind()),
            (other, _) => panic!("{other}"),
        }
        assert_eq!(error.poisons(), error.kind() == later.kind(), "{error}");
    }
    assert!(told.iter().all(|kind| *kind == told[0]), "{told:?}");
}

/// How long ranks wait: not at all where they are told at once.
fn deadline(mode: StreamMode) -> Duration {
    match mode {
        Inline => Duration::from_secs(120),
        _ => Duration::from_secs(1),
    }
}

/// The others miss and so agree, while the odd rank is in the operation already: it sees them there, unless a
/// worker runs the operation, which leaves its rank free to come to their round.
#[rstest]
fn staging_that_one_rank_turns_off_before_a_miss_is_an_error_on_every_rank(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    let world = world(mode, 3).deadline(deadline(mode));
    let errors: Vec<Result<(Error, Error)>> = world.run(|comm| {
        let mut config = ScratchConfig::default();
        config.agree_deadline = deadline(mode);
        let mut collectives = Collectives::new(comm, config.build()?);
        let device = device(&collectives);
        collectives.set_staging(Staging::Forced);
        if collectives.rank() == ODD {
            collectives.set_staging(Staging::Never);
        }
        let stream = device.create_stream()?;
        let error = scatter(&mut collectives, &stream)?;
        let later = is_out_of_order(&mut collectives)?;
        Ok((error, later))
    });
    for outcome in errors {
        let (error, later) = outcome.unwrap();
        match mode {
            Inline => assert_eq!(error.kind(), later.kind()),
            _ => {
                let timeout = matches!(error.kind(), ErrorKind::Timeout { .. });
                assert!(timeout && !error.poisons(), "{error}");
            }
        }
    }
}

#[rstest]
fn averages_are_native_or_say_what_is_left(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 3, |collectives, stream| {
        let device = device(collectives);
        let rank = collectives.rank().index();
        let counts = [4, 0, 3];
        let whole = Buffer::from_slice(&device, &[1.0_f32, 4.0, 9.0, 2.0, 5.0, 7.0, 1.5], stream)?;
        let mut shard = Buffer::<f32>::zeroed(&device, counts[rank], stream)?;
        for (averaging, divide_by) in [
            (Averaging::Auto, None),
            (Averaging::Native, None),
            (Averaging::SumThenScale, Some(3)),
        ] {
            collectives.set_averaging(averaging);
            let averaged =
                collectives.reduce_scatter_average(&whole, &mut shard, &counts, stream)?;
            assert_eq!(averaged.divide_by, divide_by);
            let start = counts[..rank].iter().sum::<usize>();
            let expected = whole.slice(start..start + counts[rank])?.read(stream)?;
            let scale = divide_by.map_or(1.0, |_| 3.0);
            let expected: Vec<_> = expected.into_iter().map(|x| x * scale).collect();
            assert_eq!(shard.read(stream)?, expected);
        }
        // Average is the sum for nobody who asks for a sum.
        let report =
            collectives.reduce_scatter_v(&whole, &mut shard, &counts, ReduceOp::Sum, stream)?;
        assert_eq!(report.path, Path::Staged);
        Ok(())
    });
}
