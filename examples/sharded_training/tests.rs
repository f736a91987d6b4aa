//! Sharded training comes to what one rank comes to, whichever way its collectives go.

use clap::Parser;
use collectives_core::error::{Error, ErrorKind};
#[cfg(target_os = "linux")]
use collectives_examples::backend::Backend;

use crate::exact;
#[cfg(target_os = "linux")]
use crate::options::Place;
use crate::options::{Compute, Options};
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
            let ranks = run(&options);
            let rounding = Rounding::of(&options, ranks.averages).unwrap();
            let one = single::train(&options, rounding);
            assert_eq!(bits(&ranks.steps), bits(&one), "{options:?}");
        }
    }
}

/// The faults of a run whose ranks are compared with these steps of one rank.
fn faults(options: &Options, ranks: &[Outcome], one: &[Step]) -> String {
    let run = Run::new(options, 0, ranks, one).unwrap();
    run.faults().join("; ")
}

#[test]
fn bf16_is_compared_bit_by_bit_however_small_the_batch() {
    for batch in [1, 2, 4] {
        for way in ["--average native", "--average sum", "--flip 3"] {
            let options = options(&format!(
                "--dtype bf16 --ranks 3 --steps 60 --batch {batch} {way}"
            ));
            let ranks = trainer::train_all(&options).unwrap().unwrap();
            let rounding = Rounding::of(&options, ranks[0].averages).unwrap();
            let one = single::train(&options, rounding);
            assert_eq!(faults(&options, &ranks, &one), "");
            let mut other = one;
            other[59].loss += 1e-6;
            assert!(faults(&options, &ranks, &other).contains("losses"));
        }
    }
}

/// As on a backend whose sums are in an order of its own.
#[cfg(target_os = "linux")]
#[test]
fn bf16_stays_within_the_bound_of_one_rank_that_does_not_round_sums() {
    for (batch, bounded) in [(32, true), (4, false)] {
        let options = options(&format!(
            "--dtype bf16 --ranks 3 --steps 60 --batch {batch}"
        ));
        let ranks = trainer::train_all(&options).unwrap().unwrap();
        let mut elsewhere = options.clone();
        elsewhere.start.backend = Backend::Nccl;
        let faults = |steps: &[Step]| faults(&elsewhere, &ranks, steps);
        let mut one = single::train(&options, Rounding::Never);
        assert_eq!(faults(&one), "");
        let sums = |layers: &mut [Vec<f32>]| {
            let gradients = layers.iter_mut().flatten();
            gradients.for_each(|gradient| *gradient *= 3.0);
        };
        let undivided = single::train_with(&options, Rounding::Never, sums);
        assert!(faults(&undivided).contains("the first gradient"));
        one[59].loss += 0.4;
        assert_eq!(faults(&one).contains("losses"), bounded, "batch {batch}");
        one[59].loss = f64::NAN;
        assert!(faults(&one).contains("losses"), "batch {batch}");
    }
}

/// So that the comparison with one rank proves something.
#[test]
fn a_lost_average_or_a_shard_off_by_one_element_changes_losses() {
    for dtype in ["f32", "bf16"] {
        let options = options(&format!("--ranks 3 --steps 6 --dtype {dtype}"));
        let ranks = run(&options).steps;
        let meddled = |meddle: fn(&mut [Vec<f32>])| {
            let one = single::train_with(&options, Rounding::Average, meddle);
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

#[test]
fn exact_sums_have_the_bits_of_one_rank_in_every_type() {
    for dtype in ["f32", "bf16"] {
        for way in ways() {
            for ranks in [3, 4] {
                let options = options(&format!("{way} --ranks {ranks} --dtype {dtype} --exact"));
                let one = single::train(&options, Rounding::Never);
                assert_eq!(bits(&run(&options).steps), bits(&one), "{options:?}");
            }
        }
    }
}

/// On every backend, also on one whose sums are in another order.
#[test]
fn exact_runs_notice_a_gradient_that_is_off_by_one() {
    let on_host = options("--ranks 3 --steps 6 --exact");
    let elsewhere = Options {
        dtype: Compute::Bf16,
        ..on_host.clone()
    };
    for (options, unit) in [(on_host, exact::F32.unit), (elsewhere, exact::BF16.unit)] {
        let ranks = trainer::train_all(&options).unwrap().unwrap();
        let faults = |meddle: &(dyn Fn(&mut [Vec<f32>]) + Sync)| {
            let one = single::train_with(&options, Rounding::Never, meddle);
            faults(&options, &ranks, &one)
        };
        assert_eq!(faults(&|_| ()), "");
        // A shard that begins an element too late, and one sum that one rank is missing from.
        assert!(faults(&|layers| layers[1].rotate_right(1)).contains("losses"));
        let one_less = |layers: &mut [Vec<f32>]| layers[0][3] -= unit / 3.0;
        assert!(faults(&one_less).contains("gradient"));
    }
}

#[test]
fn what_does_not_go_together_is_refused_in_words() {
    for (arguments, word) in [
        ("--arithmetic cuda", "--arithmetic cuda"),
        ("--capture", "--capture"),
        ("--exact --average native", "--average native"),
    ] {
        let error = options(arguments).check().unwrap_err();
        assert!(error.contains(word), "{error}");
    }
    for arguments in ["", "--exact", "--exact --average sum", "--arithmetic host"] {
        options(arguments).check().unwrap();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_gpu_computes_where_the_tensors_are_on_one_unless_the_host_is_asked_to() {
    let place = |arguments| {
        let options = options(arguments);
        options.check().map(|()| options.place())
    };
    assert_eq!(place("--backend nccl --capture"), Ok(Place::Cuda));
    assert_eq!(place("--backend nccl --arithmetic host"), Ok(Place::Host));
    assert!(place("--backend nccl --arithmetic host --capture").is_err());
    assert_eq!(place("--backend host-processes"), Ok(Place::Host));
}

#[test]
fn scratch_is_configured_by_a_file_and_by_options() {
    let file = std::env::temp_dir().join(format!("sharded-{}.toml", std::process::id()));
    std::fs::write(&file, "[scratch]\npolicy = \"exact\"\ncap = \"1KiB\"\n").unwrap();
    let from_file = format!("--config {}", file.display());
    let config = |arguments: &str| options(arguments).scratch_config().unwrap();
    assert_eq!(config(&from_file).policy_name(), "exact");
    assert_eq!(
        config(&format!("{from_file} --policy arena")).policy_name(),
        "arena"
    );
    assert!(options("--policy none-such").check().is_err());
    // What the cap refuses takes the ordinary path.
    let staged = "--ranks 3 --steps 2 --tensors ordinary --layers 0 --hidden 1024";
    let outcome = run(&options(&format!("{staged} {from_file}")));
    let fell_back = outcome.all_gather.fallback;
    std::fs::remove_file(&file).unwrap();
    assert!(fell_back > 0, "{outcome:?}");
    assert_eq!(run(&options(staged)).all_gather.fallback, 0);
}
