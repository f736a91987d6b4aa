//! What a policy keeps, against the largest request it has seen.
#![forbid(unsafe_code)]

use collectives_alloc::config::ScratchConfig;

use super::{Scratch, workload};
use crate::capability::Capability::Symmetric;
use crate::case::{Case, Outcome};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "I1",
        "geometric keeps less than four times the largest request",
        geometric_bound,
    )
    .needs(&[Symmetric])
    .catches(Planted::GrowsEightfold),
    Case::new(
        "I2",
        "geometric keeps its bound for any growth",
        any_growth_bound,
    )
    .needs(&[Symmetric])
    .catches(Planted::GrowsEightfold),
    Case::new("I3", "size classes keep their bound", class_bound)
        .needs(&[Symmetric])
        .catches(Planted::GrowsEightfold),
    Case::new("I4", "a bound that is right costs one slot", reserved_bound)
        .needs(&[Symmetric])
        .catches(Planted::ReservesNothing),
    Case::new("I5", "one size maps exactly its granules", one_size)
        .needs(&[Symmetric])
        .catches(Planted::GranuleTooMany),
    Case::new(
        "I6",
        "geometric registers a logarithmic number of slots",
        few_registrations,
    )
    .needs(&[Symmetric])
    .catches(Planted::NeverGrowsAhead),
    Case::new(
        "A2",
        "many sizes cost less than twice the largest bucket",
        many_sizes,
    )
    .needs(&[Symmetric])
    .catches(Planted::NeverGrowsAhead),
    Case::new(
        "A6",
        "ascending by one row makes few generations",
        staircase,
    )
    .needs(&[Symmetric])
    .catches(Planted::NeverGrowsAhead),
];

fn geometric_bound(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    for seed in 1..6 {
        let mut scratch = Scratch::new(rig, "geometric")?;
        let mut largest = 0;
        for bytes in workload(seed, granule) {
            scratch.touch(rig, bytes)?;
            largest = largest.max(bytes);
            let stats = scratch.pool.stats();
            let bound = 4 * largest.max(granule) + granule * stats.slots.len();
            let kept = stats.capacity_bytes();
            ensure!(
                kept < bound,
                "{kept} bytes kept for requests up to {largest}"
            );
            let promised = stats.promised_bound.unwrap_or(0);
            ensure!(kept <= promised, "{kept} bytes kept, {promised} promised");
        }
        scratch.close(rig)?;
    }
    Ok(())
}

fn any_growth_bound(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    for ratio in [1.25_f64, 1.5, 3.0, 4.0] {
        let mut config = ScratchConfig::with_policy("geometric");
        config.growth = Some(ratio);
        let mut scratch = Scratch::of(rig, &config)?;
        let mut largest = 0;
        for bytes in workload(7, granule) {
            scratch.touch(rig, bytes)?;
            largest = largest.max(bytes);
            let stats = scratch.pool.stats();
            let slots = stats.slots.len() * granule;
            let wanted = u32::try_from(largest).map(f64::from).unwrap_or(f64::MAX);
            let kept = stats.capacity_bytes().saturating_sub(slots);
            let kept = u32::try_from(kept).map(f64::from).unwrap_or(f64::MAX);
            let bound = ratio * ratio / (ratio - 1.0) * wanted;
            ensure!(
                kept <= bound,
                "growth {ratio}: {kept} bytes for requests up to {largest}"
            );
        }
        scratch.close(rig)?;
    }
    Ok(())
}

fn class_bound(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    for classes in [1_usize, 2, 4] {
        let mut config = ScratchConfig::with_policy("geometric-class");
        config.classes_per_octave = u32::try_from(classes).ok();
        let mut scratch = Scratch::of(rig, &config)?;
        let mut largest = 0;
        for bytes in workload(11, granule) {
            scratch.touch(rig, bytes)?;
            largest = largest.max(bytes);
            let stats = scratch.pool.stats();
            let kept = stats.capacity_bytes();
            let times = if classes == 1 {
                4 * largest
            } else {
                (3 * (classes + 1) * largest).div_ceil(2) + largest.div_ceil(classes)
            };
            let bound = times.max(granule) + stats.slots.len() * granule;
            ensure!(
                kept <= bound,
                "{classes} classes: {kept} bytes for up to {largest}"
            );
        }
        scratch.close(rig)?;
    }
    Ok(())
}

fn reserved_bound(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    let bound = 8 * granule;
    let config = rig.config(&format!("[scratch]\nmax_request = \"{bound}B\""))?;
    let mut scratch = Scratch::of(rig, &config)?;
    for bytes in [10, granule, 3 * granule, bound, 5] {
        scratch.touch(rig, bytes)?;
    }
    let stats = scratch.pool.stats();
    ensure_eq!(stats.registrations, 1, "registrations");
    ensure!(stats.capacity_bytes() >= bound, "less than the bound");
    ensure!(
        stats.capacity_bytes() < bound + granule,
        "more than the bound and a granule"
    );
    // Where the bound was too low.
    scratch.touch(rig, 2 * bound)?;
    let kept = scratch.pool.stats().capacity_bytes();
    let wrong = 4 * 2 * bound - bound + 2 * granule;
    ensure!(
        kept <= wrong,
        "{kept} bytes kept where the bound was too low"
    );
    scratch.close(rig)
}

fn one_size(rig: &mut Rig<'_>) -> Outcome {
    for policy in ["exact", "geometric", "replace"] {
        let mut scratch = Scratch::new(rig, policy)?;
        let granule = rig.granule();
        let bytes = 3 * granule - 17;
        for _ in 0..5 {
            scratch.touch(rig, bytes)?;
        }
        let mapped = scratch.pool.stats().mapped_bytes();
        let expected = scratch.comm.info().mapped(bytes);
        ensure_eq!(mapped, expected, "mapped bytes of `{policy}`");
        scratch.close(rig)?;
    }
    Ok(())
}

fn few_registrations(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "geometric")?;
    let granule = rig.granule();
    let (least, most) = (granule, 30 * granule);
    for step in 0..60 {
        scratch.touch(rig, least + (most - least) * step / 59)?;
    }
    let registrations = scratch.pool.stats().registrations;
    ensure!(
        registrations <= 6,
        "{registrations} registrations for 1 to 30 granules"
    );
    scratch.close(rig)
}

fn many_sizes(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "geometric")?;
    let granule = rig.granule();
    let sizes: Vec<_> = (1..=32).map(|rows| rows * granule / 2).collect();
    for &bytes in &sizes {
        scratch.touch(rig, bytes)?;
    }
    let stats = scratch.pool.stats();
    let bucket = (32 * granule / 2).next_power_of_two();
    let bound = 2 * bucket + stats.slots.len() * granule;
    let mapped = stats.mapped_bytes();
    ensure!(mapped < bound, "{mapped} mapped bytes for 32 sizes");
    for &bytes in &sizes {
        scratch.touch(rig, bytes)?;
    }
    let again = scratch.pool.stats();
    ensure_eq!(
        again.mapped_bytes(),
        mapped,
        "mapped bytes after a second sweep"
    );
    ensure_eq!(again.registrations, stats.registrations, "registrations");
    scratch.close(rig)
}

fn staircase(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "replace")?;
    let (least, most) = (rig.granule(), 16 * rig.granule());
    for step in 0..500 {
        scratch.touch(rig, least + (most - least) * step / 499)?;
    }
    let stats = scratch.pool.stats();
    ensure!(
        stats.registrations <= 5,
        "{} generations",
        stats.registrations
    );
    scratch.close(rig)
}
