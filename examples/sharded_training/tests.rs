//! Sharded training comes to what one rank comes to, whichever way its collectives go.

use clap::Parser;
use collectives_core::error::{Error, ErrorKind};

use crate::options::Options;
use crate::outcome::{Outcome, Paths, Step};
use crate::report::Run;
use crate::single::{self, Rounding};
use crate::trainer;

/// A short run of small layers that no number of ranks divides.
fn options(arguments: &str) -> Options {
    let fixed = "sharded_training --hidden 13 --batch 5 --granule 4KiB";
    Options::try_parse_from(fixed.split(' ').chain(arguments.split_whitespace())).unwrap()
}

/// What all ranks saw, which is the same.
fn run(options: &Options) -> Outcome {
    let mut ranks = trainer::train_all(options).unwrap().unwrap();
    let last = ranks.pop().unwrap();
    for rank in &ranks {
        assert_eq!((&rank.steps, rank.kept), (&last.steps, last.kept));
    }
    assert_eq!((last.kept.held_bytes, last.kept.left_bytes), (0, Some(0)));
    last
}

fn bits(steps: &[Step]) -> Vec<(u64, u64)> {
    let of = |step: &Step| (step.loss.to_bits(), step.gradient_norm.to_bits());
    steps.iter().map(of).collect()
}

/// Every combination of what must not matter.
fn ways() -> impl Iterator<Item = String> {
    let memory = [
        "--symmetric on --tensors pooled",
        "--symmetric on --tensors ordinary",
        "--symmetric off",
    ];
    let shards = ["--shards uneven", "--shards padded"];
    let places = ["", "--in-place"];
    memory.into_iter().flat_map(move |memory| {
        shards.into_iter().flat_map(move |shards| {
            places
                .into_iter()
                .map(move |place| format!("--steps 6 {memory} {shards} {place}"))
        })
    })
}

#[test]
fn f32_has_the_bits_of_one_rank_that_folds_every_micro_batch() {
    for ranks in [1, 2, 3, 5] {
        for way in ways() {
            for average in ["native", "sum"] {
                let options = options(&format!("{way} --ranks {ranks} --average {average}"));
                let one = single::train(&options, Rounding::Never);
                assert_eq!(bits(&run(&options).steps), bits(&one), "{options:?}");
            }
        }
    }
}

#[test]
fn bf16_has_the_bits_of_one_rank_that_rounds_by_the_rule() {
    for way in ways() {
        for average in ["native", "sum"] {
            let options = options(&format!("{way} --ranks 3 --dtype bf16 --average {average}"));
            let one = single::train(&options, Rounding::ByRule);
            assert_eq!(bits(&run(&options).steps), bits(&one), "{options:?}");
        }
    }
}

#[test]
fn bf16_stays_within_the_bound_of_one_rank_that_does_not_round_sums() {
    let options = options("--dtype bf16 --ranks 3 --steps 60");
    let ranks = trainer::train_all(&options).unwrap().unwrap();
    let faults = |steps: &[Step]| {
        let run = Run::new(&options, 0, &ranks, steps).unwrap();
        run.faults().join("; ")
    };
    assert_eq!(faults(&single::train(&options, Rounding::Never)), "");
    let sums = |layers: &mut [Vec<f32>]| {
        let gradients = layers.iter_mut().flatten();
        gradients.for_each(|gradient| *gradient *= 3.0);
    };
    let undivided = single::train_with(&options, Rounding::Never, sums);
    assert!(faults(&undivided).contains("the first gradient"));
}

/// So that the comparison with one rank proves something.
#[test]
fn a_lost_average_or_a_shard_off_by_one_element_changes_losses() {
    for dtype in ["f32", "bf16"] {
        let options = options(&format!("--ranks 3 --steps 6 --dtype {dtype}"));
        let ranks = run(&options).steps;
        let meddled = |meddle: fn(&mut [Vec<f32>])| {
            let one = single::train_with(&options, Rounding::ByRule, meddle);
            // Gradients change in the first step, losses after it.
            assert_eq!(ranks[0].loss.to_bits(), one[0].loss.to_bits());
            let pairs = ranks.iter().zip(&one);
            let differs = pairs.skip(1).filter(|(ours, one)| ours.loss != one.loss);
            (differs.count(), one[0])
        };
        let (losses, first) = meddled(|layers| {
            let gradients = layers.iter_mut().flatten();
            gradients.for_each(|gradient| *gradient *= 3.0);
        });
        assert!(first.gradient_norm > 2.9 * ranks[0].gradient_norm);
        // Adam steps as far along a gradient as along three times it, but for its epsilon, which
        // is lost in a copy of eight bits.
        assert!(losses > 0 || dtype == "bf16");
        let (losses, _) = meddled(|layers| layers[1].rotate_right(1));
        assert_eq!(losses, 5);
    }
}

#[test]
fn symmetric_memory_may_be_switched_between_steps() {
    for tensors in ["pooled", "ordinary"] {
        let arguments = format!("--ranks 3 --steps 9 --tensors {tensors}");
        let always = run(&options(&arguments));
        let flipping = run(&options(&format!("{arguments} --flip 2")));
        assert_eq!(bits(&always.steps), bits(&flipping.steps));
        let Paths {
            zero_copy,
            staged,
            direct,
            fallback,
        } = flipping.reduce_scatter;
        // Steps 2, 3, 6 and 7 of nine go without; each has four layers.
        assert_eq!((zero_copy + staged, direct, fallback), (20, 16, 0));
        assert_eq!(flipping.kept, always.kept);
    }
}

#[test]
fn every_call_takes_the_path_that_was_asked_for() {
    let calls = |way: &str| {
        let outcome = run(&options(&format!("--ranks 3 --steps 4 {way}")));
        (outcome.all_gather, outcome.reduce_scatter, outcome.averages)
    };
    // Four layers: forward gathers all, backward all but the two that are there, and one more
    // forward pass measures the accuracy.
    let (gathers, scatters) = (4 * 6 + 4, 16);
    let none = Paths::default();
    let (gather, scatter, averages) = calls("--forbid-fallback");
    let zero_copy = |zero_copy| Paths { zero_copy, ..none };
    assert_eq!((gather, scatter), (zero_copy(gathers), zero_copy(scatters)));
    assert_eq!((averages.by_collective, averages.by_optimiser), (16, 0));
    let (gather, scatter, averages) =
        calls("--forbid-fallback --tensors ordinary --in-place --average sum");
    let staged = |staged| Paths { staged, ..none };
    assert_eq!((gather, scatter), (staged(gathers), staged(scatters)));
    assert_eq!((averages.by_collective, averages.by_optimiser), (0, 16));
    let (gather, scatter, _) = calls("--symmetric off");
    let direct = |direct| Paths { direct, ..none };
    assert_eq!((gather, scatter), (direct(gathers), direct(scatters)));
}

#[test]
fn a_forbidden_fallback_fails_before_anything_is_trained() {
    let options = options("--ranks 2 --symmetric off --forbid-fallback");
    let error = trainer::train_all(&options).unwrap_err();
    let error = error.downcast::<Error>().unwrap();
    let forbidden = matches!(error.kind(), ErrorKind::FallbackForbidden { .. });
    assert!(forbidden, "{error}");
}

#[test]
fn the_spirals_are_learnt() {
    let options = options("--hidden 48 --batch 32 --steps 300 --ranks 2 --dtype bf16");
    let outcome = run(&options);
    let (first, last) = (outcome.steps[0], outcome.steps[299]);
    assert!(first.loss > 0.5 && last.loss < 0.1, "{first:?}, {last:?}");
    assert!(outcome.accuracy > 0.95, "{}", outcome.accuracy);
}
