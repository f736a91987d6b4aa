//! Scratch: what a policy keeps, what a lease is, and what is counted.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use collectives_alloc::config::ScratchConfig;
use collectives_alloc::options::OnMiss;
use collectives_core::communicator::Communicator;
use collectives_core::error::{ErrorKind, MissedWhen, Misuse, Refusal};
use collectives_core::layered::symmetric_of;
use collectives_core::path::{Path, Reason};
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::{Request, SCRATCH_ALIGNMENT, ScratchAllocator};

use crate::capability::Capability::{CountsMemory, Symmetric};
use crate::case::{Case, Outcome, refused};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::values::Dice;
use crate::{ensure, ensure_eq};

const NEEDS: &[crate::capability::Capability] = &[Symmetric];

/// The cases.
pub const CASES: &[Case] = &[
    Case::new(
        "I1",
        "geometric keeps less than four times the largest request",
        geometric_bound,
    )
    .needs(NEEDS)
    .catches(Planted::GrowsEightfold),
    Case::new(
        "I2",
        "geometric keeps its bound for any growth",
        any_growth_bound,
    )
    .needs(NEEDS)
    .catches(Planted::GrowsEightfold),
    Case::new("I3", "size classes keep their bound", class_bound)
        .needs(NEEDS)
        .catches(Planted::GrowsEightfold),
    Case::new("I4", "a bound that is right costs one slot", reserved_bound)
        .needs(NEEDS)
        .catches(Planted::ReservesNothing),
    Case::new("I5", "one size maps exactly its granules", one_size)
        .needs(NEEDS)
        .catches(Planted::GranuleTooMany),
    Case::new(
        "I6",
        "geometric registers a logarithmic number of slots",
        few_registrations,
    )
    .needs(NEEDS)
    .catches(Planted::NeverGrowsAhead),
    Case::new("I7", "neither cap nor limit is exceeded", cap_and_limit)
        .needs(NEEDS)
        .catches(Planted::LimitIgnored),
    Case::new("I8", "a second sweep registers nothing", second_sweep)
        .needs(NEEDS)
        .catches(Planted::NeverHits),
    Case::new(
        "I9",
        "reported bytes are what the device lost",
        reported_bytes,
    )
    .needs(&[Symmetric, CountsMemory])
    .catches(Planted::StatsUndercount),
    Case::new("I10", "the seed sweep is priced as published", seed_sweep)
        .on(1)
        .needs(NEEDS)
        .catches(Planted::PlanHalves),
    Case::new(
        "I11",
        "a lease lies inside exactly one window",
        inside_one_window,
    )
    .needs(NEEDS)
    .catches(Planted::WindowsNotFound),
    Case::new(
        "I12",
        "slots are aligned and at the same offset on every rank",
        aligned,
    )
    .needs(NEEDS)
    .catches(Planted::UnevenOffsets),
    Case::new("I13", "live leases never overlap", no_overlap)
        .needs(NEEDS)
        .catches(Planted::LeasesEndAtOnce),
    Case::new("I14", "a forgotten lease keeps its slot", forgotten)
        .needs(NEEDS)
        .catches(Planted::LeasesEndAtOnce),
    Case::new("I15", "the smallest slot that fits is used", best_fit)
        .needs(NEEDS)
        .catches(Planted::WorstFit),
    Case::new("I17", "a slot never changes its address", addresses_stay)
        .needs(NEEDS)
        .catches(Planted::SlotsMove),
    Case::new(
        "I18",
        "scratch never aliases a user's buffer",
        never_aliases,
    )
    .needs(NEEDS)
    .catches(Planted::AllocatedTwice),
    Case::new(
        "I20",
        "the order of releases changes nothing",
        release_orders,
    )
    .needs(NEEDS)
    .catches(Planted::ReleasedInStackOrder),
    Case::new("I40", "after the seal nothing is registered", sealed)
        .needs(NEEDS)
        .catches(Planted::SealIgnored),
    Case::new(
        "I50",
        "every request is a hit a growth a fallback or a refusal",
        counted,
    )
    .needs(NEEDS)
    .catches(Planted::HitsUncounted),
    Case::new(
        "A2",
        "many sizes cost less than twice the largest bucket",
        many_sizes,
    )
    .needs(NEEDS)
    .catches(Planted::NeverGrowsAhead),
    Case::new(
        "A3",
        "after the seal a larger request names what it needs",
        larger_than_sealed,
    )
    .needs(NEEDS)
    .catches(Planted::SealIgnored),
    Case::new(
        "A6",
        "ascending by one row makes few generations",
        staircase,
    )
    .needs(NEEDS)
    .catches(Planted::NeverGrowsAhead),
    Case::new(
        "A11",
        "a steady loop sees no new address after its first sweep",
        steady_loop,
    )
    .needs(NEEDS)
    .catches(Planted::NeverHits),
    Case::new(
        "C3",
        "hits releases and drops make no collective call",
        local_hits,
    )
    .needs(NEEDS)
    .catches(Planted::HitAgrees),
    Case::new(
        "E13",
        "what is larger than the cap takes the ordinary path",
        over_cap,
    )
    .needs(NEEDS)
    .catches(Planted::CapIgnored),
    Case::new("E14", "a request of exactly the cap is staged", at_cap)
        .needs(NEEDS)
        .catches(Planted::CapOffByOne),
    Case::new(
        "E16",
        "sizes beyond four gibibytes are priced without loss",
        large_sizes,
    )
    .needs(NEEDS)
    .catches(Planted::PlanHalves),
    Case::new(
        "F1",
        "what a trim frees can be used for a larger slot",
        trim_and_grow,
    )
    .needs(NEEDS)
    .catches(Planted::TrimDoesNothing),
    Case::new(
        "F8",
        "what a larger slot replaces is freed before it is allocated",
        frees_first,
    )
    .needs(NEEDS)
    .catches(Planted::NeverGrowsAhead),
    Case::new(
        "F9",
        "a miss is an error or a fallback as configured",
        on_miss,
    )
    .needs(NEEDS)
    .catches(Planted::OnMissFlipped),
    Case::new(
        "F16",
        "reserving what a plan priced costs what it said",
        plan_is_kept,
    )
    .needs(NEEDS)
    .catches(Planted::PlanHalves),
];

/// An allocator with its communicator.
struct Scratch {
    comm: Box<dyn Communicator>,
    pool: Box<dyn ScratchAllocator>,
}

impl Scratch {
    fn new(rig: &mut Rig<'_>, policy: &str) -> Outcome<Self> {
        Self::of(rig, &ScratchConfig::with_policy(policy))
    }

    fn of(rig: &mut Rig<'_>, config: &ScratchConfig) -> Outcome<Self> {
        let mut options = config.options();
        options.agree_deadline = rig.deadline();
        let comm = rig.communicator()?;
        let pool = rig.pool_of(config, options)?;
        Ok(Self { comm, pool })
    }

    /// One use of this many bytes.
    fn touch(&mut self, rig: &Rig<'_>, bytes: usize) -> Outcome {
        Ok(rig
            .lease(&mut *self.comm, &mut *self.pool, bytes)?
            .complete()?)
    }

    fn close(self, rig: &Rig<'_>) -> Outcome {
        rig.close(self.comm, self.pool)
    }
}

/// Sizes of a random workload, equal on all ranks.
fn workload(seed: u64, granule: usize) -> Vec<usize> {
    let mut dice = Dice::new(seed);
    let mut sizes = Vec::new();
    for _ in 0..30 {
        let octave = dice.roll(9);
        sizes.push(1 + dice.roll((granule / 8) << octave));
    }
    sizes
}

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

fn cap_and_limit(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    let mut options = rig.options();
    options.limit = Some(4 * granule);
    options.cap = Some(6 * granule);
    let comm = rig.communicator()?;
    let pool = rig.pool("geometric", options)?;
    let mut scratch = Scratch { comm, pool };
    for bytes in [
        granule,
        2 * granule,
        3 * granule,
        granule,
        5 * granule,
        7 * granule,
    ] {
        let leased = rig.lease(&mut *scratch.comm, &mut *scratch.pool, bytes);
        let mapped = scratch.pool.stats().mapped_bytes();
        ensure!(
            mapped <= 4 * granule,
            "{mapped} mapped bytes are over the limit"
        );
        match leased {
            Ok(lease) => {
                ensure!(bytes <= 4 * granule, "{bytes} bytes were leased");
                lease.complete()?;
            }
            Err(error) => {
                ensure!(
                    matches!(error.kind(), ErrorKind::Refused { .. }),
                    "not refused: {error}"
                );
            }
        }
    }
    scratch.touch(rig, granule)?;
    scratch.close(rig)
}

fn second_sweep(rig: &mut Rig<'_>) -> Outcome {
    for policy in ["exact", "geometric", "geometric-class", "replace"] {
        let mut scratch = Scratch::new(rig, policy)?;
        let sizes = workload(3, rig.granule());
        for &bytes in &sizes {
            scratch.touch(rig, bytes)?;
        }
        let before = scratch.pool.stats();
        for &bytes in &sizes {
            scratch.touch(rig, bytes)?;
        }
        let after = scratch.pool.stats();
        ensure_eq!(
            after.registrations,
            before.registrations,
            "registrations of `{policy}`"
        );
        ensure_eq!(
            after.mapped_bytes(),
            before.mapped_bytes(),
            "bytes of `{policy}`"
        );
        scratch.close(rig)?;
    }
    Ok(())
}

fn reported_bytes(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "exact")?;
    rig.settle();
    let base = rig.probe().mapped_bytes().unwrap_or(0);
    for bytes in [1, 4097, rig.granule(), rig.granule() + 1] {
        scratch.touch(rig, bytes)?;
        let stats = scratch.pool.stats();
        let lost = rig.probe().mapped_bytes().unwrap_or(0) - base;
        ensure_eq!(stats.mapped_bytes(), lost, "mapped bytes reported and lost");
        let priced =
            |slot: &collectives_core::stats::SlotStats| scratch.comm.info().mapped(slot.capacity);
        let sum: usize = stats.slots.iter().map(priced).sum();
        ensure_eq!(
            stats.mapped_bytes(),
            sum,
            "mapped bytes and the sum of whole granules"
        );
    }
    scratch.close(rig)
}

fn seed_sweep(rig: &mut Rig<'_>) -> Outcome {
    // Sixteen prompt lengths beside five captured batches, in rows of 5120 two-byte elements.
    let padded = |tokens: usize| Request::new(tokens.next_multiple_of(64) * 10_240);
    let mut requests: Vec<_> = [1, 8, 64, 128, 256].map(padded).into();
    let prompts = [
        37, 64, 101, 150, 192, 230, 300, 350, 410, 480, 505, 570, 640, 655, 700, 768,
    ];
    requests.extend(prompts.map(padded));
    let comm = rig.communicator()?;
    for (policy, expected) in [
        ("exact", 51_118_080),           // 48.75 MiB
        ("geometric-class", 15_728_640), // 15 MiB
    ] {
        let pool = rig.pool(policy, rig.options())?;
        let plan = pool.plan(comm.info(), &requests)?;
        ensure_eq!(plan.capacity_bytes, expected, "what `{policy}` keeps");
    }
    let mut comm = comm;
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn inside_one_window(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "geometric")?;
    for bytes in [1, 100, rig.granule(), 3 * rig.granule() + 1] {
        let lease = rig.lease(&mut *scratch.comm, &mut *scratch.pool, bytes)?;
        let operand = lease.operand();
        ensure_eq!(operand.bytes, bytes, "bytes leased");
        let found = scratch.comm.window_of(operand.addr, operand.bytes);
        ensure!(found.is_some(), "a lease lies in no window");
        ensure_eq!(found, operand.window, "the window of the lease's bytes");
        lease.complete()?;
    }
    scratch.close(rig)
}

fn aligned(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "exact")?;
    let mut places = Vec::new();
    for bytes in [1, 5000, rig.granule() + 3] {
        let lease = rig.lease(&mut *scratch.comm, &mut *scratch.pool, bytes)?;
        let operand = lease.operand();
        let off = operand.addr.value() % SCRATCH_ALIGNMENT;
        ensure_eq!(off, 0, "bytes the slot is off its alignment");
        let window = operand.window.map(|slice| (slice.window, slice.offset));
        places.push((window, lease.slot()));
        lease.complete()?;
    }
    rig.expect_alike("windows and offsets", &format!("{places:?}"))?;
    scratch.close(rig)
}

fn no_overlap(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "geometric")?;
    let mut dice = Dice::new(5);
    let mut live = Vec::new();
    for _ in 0..60 {
        if live.len() > 5 || !live.is_empty() && dice.roll(3) == 0 {
            let lease: collectives_core::scratch::Lease = live.remove(dice.roll(live.len()));
            lease.complete()?;
            continue;
        }
        let bytes = 1 + dice.roll(3 * rig.granule());
        let lease = rig.lease(&mut *scratch.comm, &mut *scratch.pool, bytes)?;
        for other in &live {
            let overlap = lease.operand().overlaps(other.operand());
            ensure!(!overlap, "two live leases overlap: {lease:?} and {other:?}");
        }
        live.push(lease);
    }
    for lease in live {
        lease.complete()?;
    }
    scratch.close(rig)
}

fn forgotten(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "geometric")?;
    let lease = rig.lease(&mut *scratch.comm, &mut *scratch.pool, 1000)?;
    let slot = lease.slot();
    // A lease is given back at most once; this one, only at the end of the case.
    let kept = std::mem::ManuallyDrop::new(lease);
    for _ in 0..10 {
        let lease = rig.lease(&mut *scratch.comm, &mut *scratch.pool, 1000)?;
        ensure!(
            lease.slot() != slot,
            "the slot of a forgotten lease is lent"
        );
        lease.complete()?;
    }
    let stats = scratch.pool.stats();
    let busy = stats.slots.iter().find(|other| other.generation == slot.0);
    ensure!(
        busy.is_some_and(|slot| slot.leased),
        "the slot of a forgotten lease is not busy"
    );
    let trimmed = scratch.pool.trim(&mut *scratch.comm)?;
    ensure!(
        trimmed.held_bytes > 0,
        "a trim takes the slot of a forgotten lease"
    );
    std::mem::ManuallyDrop::into_inner(kept).complete()?;
    scratch.close(rig)
}

fn best_fit(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "geometric")?;
    let granule = rig.granule();
    for bytes in [granule, 3 * granule, 9 * granule] {
        scratch.touch(rig, bytes)?;
    }
    let slots = scratch.pool.stats().slots;
    ensure!(slots.len() > 1, "one slot only");
    for bytes in [1, granule, granule + 1, 3 * granule, 5 * granule] {
        let lease = rig.lease(&mut *scratch.comm, &mut *scratch.pool, bytes)?;
        let fits = slots.iter().filter(|slot| slot.capacity >= bytes);
        let best = fits
            .min_by_key(|slot| slot.capacity)
            .map(|slot| slot.generation);
        ensure_eq!(Some(lease.slot().0), best, "the slot for {bytes} bytes");
        lease.complete()?;
    }
    scratch.close(rig)
}

fn addresses_stay(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "geometric")?;
    let mut places = BTreeMap::new();
    for round in 0..60 {
        let bytes = (1 + round * 7 % 5) * rig.granule();
        let lease = rig.lease(&mut *scratch.comm, &mut *scratch.pool, bytes)?;
        let addr = lease.operand().addr;
        let first = *places.entry(lease.slot()).or_insert(addr);
        ensure_eq!(addr, first, "the address of {}", lease.slot());
        lease.complete()?;
    }
    scratch.close(rig)
}

fn never_aliases(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let count = rig.granule() / 4;
    rig.eager(&mut handle, rig.granule(), rig.stream())?;
    let mut data = handle.symmetric_buffer::<u32>(count)?;
    data.write(&rig.input(count, 4), rig.stream())?;
    let window = data.window().map(|slice| slice.window);
    rig.witness().forget();
    for granules in 1..5 {
        rig.eager(&mut handle, granules * rig.granule(), rig.stream())?;
    }
    for op in rig.witness().seen() {
        let used = op.send.window.map(|slice| slice.window);
        ensure!(
            used != window,
            "a staged operation uses the window of a buffer"
        );
    }
    rig.expect_all("the buffer", &data, &rig.input(count, 4), rig.stream())?;
    drop(data);
    let _deferred = handle.close()?;
    Ok(())
}

fn release_orders(rig: &mut Rig<'_>) -> Outcome {
    let mut states = Vec::new();
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let mut scratch = Scratch::new(rig, "geometric")?;
        let mut leases = Vec::new();
        for bytes in [1000, 2 * rig.granule(), 3000] {
            let lease = rig.lease(&mut *scratch.comm, &mut *scratch.pool, bytes)?;
            leases.push(Some(lease));
        }
        for index in order {
            if let Some(lease) = leases[index].take() {
                lease.complete()?;
            }
        }
        let mut served = Vec::new();
        for bytes in [3000, 1000, 2 * rig.granule(), 10] {
            let lease = rig.lease(&mut *scratch.comm, &mut *scratch.pool, bytes)?;
            served.push(lease.slot());
            lease.complete()?;
        }
        states.push((served, scratch.pool.stats().slots));
        scratch.close(rig)?;
    }
    for state in &states {
        ensure_eq!(
            state,
            &states[0],
            "the state after another order of releases"
        );
    }
    Ok(())
}

fn sealed(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let _plan = handle.reserve(&[Request::new(2 * rig.granule())])?;
    handle.seal();
    let before = handle.stats();
    for granules in [1, 2, 5, 1, 9] {
        let count = granules * rig.granule() / 4;
        let mut tensor = rig.tensor::<u32>(count, 1)?;
        let done = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream());
        ensure_eq!(
            done.is_ok(),
            granules <= 2,
            "whether {granules} granules are staged"
        );
    }
    let error = refused(
        "reserving after the seal",
        handle.reserve(&[Request::new(1)]),
    )?;
    ensure_eq!(
        error.misuse(),
        Some(&Misuse::Sealed),
        "reserving after the seal"
    );
    let after = handle.stats();
    ensure_eq!(after.registrations, before.registrations, "registrations");
    ensure_eq!(
        after.registrations_after_seal,
        0,
        "registrations after the seal"
    );
    let _deferred = handle.close()?;
    Ok(())
}

fn counted(rig: &mut Rig<'_>) -> Outcome {
    let mut options = rig.options();
    options.cap = Some(4 * rig.granule());
    let mut handle = rig.collectives_with("geometric", options)?;
    let granules = [1, 1, 2, 9, 2, 4, 9, 1];
    for granules in granules {
        rig.eager(&mut handle, granules * rig.granule(), rig.stream())?;
    }
    handle.seal();
    let stats = handle.stats();
    let sum = stats.hits + stats.growths + stats.fallback_count() + stats.refusals;
    ensure_eq!(stats.requests, sum, "requests and the sum of outcomes");
    ensure_eq!(stats.requests, granules.len() as u64, "requests");
    ensure_eq!(stats.fallback_count(), 2, "fallbacks");
    ensure_eq!(
        stats.growths,
        stats.registrations,
        "growths and registrations"
    );
    let sizes: u64 = stats.histogram.0.iter().sum();
    ensure_eq!(sizes, stats.requests, "requests in the histogram");
    rig.expect_alike("the digest of decisions", &stats.digest.to_string())?;
    let _deferred = handle.close()?;
    Ok(())
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

fn larger_than_sealed(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    rig.eager(&mut handle, rig.granule(), rig.stream())?;
    handle.seal();
    let bytes = 10 * rig.granule();
    let mut tensor = rig.tensor::<u32>(bytes / 4, 1)?;
    let before = rig.witness().calls("allocate_symmetric");
    let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream());
    let error = refused("a larger request after the seal", reduced)?;
    let asked = match error.kind() {
        ErrorKind::NeedsReserve { bytes, when, .. } => Some((*bytes, *when)),
        _ => None,
    };
    ensure_eq!(
        asked,
        Some((bytes, MissedWhen::Sealed)),
        "what was asked for"
    );
    ensure_eq!(
        rig.witness().calls("allocate_symmetric"),
        before,
        "allocations so far"
    );
    rig.expect_all(
        "the tensor",
        &tensor,
        &rig.input(bytes / 4, 1),
        rig.stream(),
    )?;
    rig.eager(&mut handle, rig.granule(), rig.stream())?;
    let _deferred = handle.close()?;
    Ok(())
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

fn steady_loop(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "geometric")?;
    let sizes = [100, 5000, rig.granule(), 2 * rig.granule() + 5, 700];
    let mut addresses = [None; 5];
    let mut changes = 0;
    for round in 0..200 {
        for (index, &bytes) in sizes.iter().enumerate() {
            let lease = rig.lease(&mut *scratch.comm, &mut *scratch.pool, bytes)?;
            let addr = Some(lease.operand().addr);
            // The first sweep grows, the second settles which slot serves which size.
            changes += usize::from(round > 1 && addresses[index] != addr);
            addresses[index] = addr;
            lease.complete()?;
        }
    }
    ensure_eq!(changes, 0, "changes of address in a steady loop");
    scratch.close(rig)
}

fn local_hits(rig: &mut Rig<'_>) -> Outcome {
    let mut scratch = Scratch::new(rig, "geometric")?;
    scratch.touch(rig, 2 * rig.granule())?;
    let before = rig.witness().collective_calls();
    for _ in 0..20 {
        scratch.touch(rig, rig.granule())?;
    }
    let abandoned = rig.lease(&mut *scratch.comm, &mut *scratch.pool, 10)?;
    drop(abandoned);
    let calls = rig.witness().collective_calls();
    ensure_eq!(calls, before, "collective calls after hits and releases");
    let Scratch { mut comm, mut pool } = scratch;
    let _deferred = pool.close(&mut *comm)?;
    let before = rig.witness().collective_calls();
    drop(pool);
    ensure_eq!(
        rig.witness().collective_calls(),
        before,
        "calls after a drop"
    );
    let left = symmetric_of(&mut *comm)?.window_count();
    ensure_eq!(left, 0, "windows left");
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn capped(rig: &mut Rig<'_>, bytes: usize) -> Outcome<(Path, Reason)> {
    let cap = 3 * rig.granule();
    let mut options = rig.options();
    options.cap = Some(cap);
    let mut handle = rig.collectives_with("geometric", options)?;
    let mut tensor = rig.tensor::<u8>(bytes, 1)?;
    let report = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
    rig.expect_sum("a call near the cap", &tensor, 1, rig.stream())?;
    let _deferred = handle.close()?;
    Ok((report.path, report.reason))
}

fn over_cap(rig: &mut Rig<'_>) -> Outcome {
    let cap = 3 * rig.granule();
    let taken = capped(rig, cap + 1)?;
    ensure_eq!(
        taken,
        (Path::Fallback, Reason::OverCap),
        "a byte more than the cap"
    );
    Ok(())
}

fn at_cap(rig: &mut Rig<'_>) -> Outcome {
    let cap = 3 * rig.granule();
    for bytes in [cap - 1, cap] {
        let (path, _) = capped(rig, bytes)?;
        ensure_eq!(
            path,
            Path::Staged,
            "the path of {bytes} bytes under a cap of {cap}"
        );
    }
    Ok(())
}

fn trim_and_grow(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    let mut options = rig.options();
    options.limit = Some(4 * granule);
    let comm = rig.communicator()?;
    let pool = rig.pool("exact", options)?;
    let mut scratch = Scratch { comm, pool };
    scratch.touch(rig, granule)?;
    scratch.touch(rig, 2 * granule)?;
    let leased = rig.lease(&mut *scratch.comm, &mut *scratch.pool, 4 * granule);
    let error = refused("a slot beyond the limit", leased)?;
    let over = matches!(
        error.kind(),
        ErrorKind::Refused {
            why: Refusal::OverLimit { .. },
            ..
        }
    );
    ensure!(over, "not over the limit: {error}");
    let trimmed = scratch.pool.trim(&mut *scratch.comm)?;
    ensure_eq!(
        trimmed.mapped_bytes,
        3 * granule,
        "bytes that a trim gave back"
    );
    scratch.touch(rig, 4 * granule)?;
    scratch.close(rig)
}

fn large_sizes(rig: &mut Rig<'_>) -> Outcome {
    let handle = rig.collectives("exact")?;
    let granule = rig.granule();
    for elements in [(1 << 29) - 1, 1 << 29, (1 << 29) + 1, (5 << 30) / 4 + 3] {
        let op = collectives_core::collective::Op::AllReduce(ReduceOp::Sum);
        let dtype = collectives_core::dtype::DType::F32;
        let request = handle.request_for(op, dtype, elements)?;
        ensure_eq!(request, Some(Request::new(elements * 4)), "the request");
        let plan = handle.plan(&[Request::new(elements * 4)])?;
        ensure_eq!(plan.capacity_bytes, elements * 4, "capacity");
        let over = plan.mapped_bytes - plan.capacity_bytes;
        ensure!(over < 2 * granule, "{over} bytes more are mapped");
        let error = refused(
            "a size that overflows",
            handle.request_for(op, dtype, usize::MAX / 2),
        )?;
        let overflow = matches!(error.misuse(), Some(Misuse::SizeOverflow { .. }));
        ensure!(overflow, "a size that overflows: {error}");
    }
    ensure_eq!(handle.stats().mapped_bytes(), 0, "bytes that plans spent");
    let _deferred = handle.close()?;
    Ok(())
}

fn frees_first(rig: &mut Rig<'_>) -> Outcome {
    let granule = rig.granule();
    let mut options = rig.options();
    options.limit = Some(5 * granule);
    let comm = rig.communicator()?;
    let pool = rig.pool("replace", options)?;
    let mut scratch = Scratch { comm, pool };
    scratch.touch(rig, 2 * granule)?;
    // Both together would be over the limit.
    scratch.touch(rig, 4 * granule)?;
    let stats = scratch.pool.stats();
    ensure_eq!(stats.mapped_bytes(), 4 * granule, "mapped bytes");
    ensure_eq!(stats.deregistrations, 1, "slots that went");
    scratch.close(rig)
}

fn on_miss(rig: &mut Rig<'_>) -> Outcome {
    for policy in [OnMiss::Error, OnMiss::Fallback] {
        let mut options = rig.options();
        options.on_miss = policy;
        let mut handle = rig.collectives_with("geometric", options)?;
        rig.eager(&mut handle, 100, rig.stream())?;
        handle.seal();
        let count = 3 * rig.granule() / 4;
        let mut tensor = rig.tensor::<u32>(count, 1)?;
        let reduced = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream());
        match policy {
            OnMiss::Fallback => {
                let report = reduced?;
                ensure_eq!(report.reason, Reason::MissAfterSeal, "the reason");
                rig.expect_sum("the fallback", &tensor, 1, rig.stream())?;
            }
            _ => {
                let error = refused("a miss after the seal", reduced)?;
                let reserve = matches!(error.kind(), ErrorKind::NeedsReserve { .. });
                ensure!(reserve, "not NeedsReserve: {error}");
            }
        }
        let _deferred = handle.close()?;
    }
    Ok(())
}

fn plan_is_kept(rig: &mut Rig<'_>) -> Outcome {
    for policy in ["exact", "geometric", "geometric-class", "replace"] {
        let mut scratch = Scratch::new(rig, policy)?;
        let requests: Vec<_> = [1, 7, 3, 2, 7]
            .map(|granules| Request::new(granules * rig.granule() - 5))
            .into();
        let plan = scratch.pool.plan(scratch.comm.info(), &requests)?;
        ensure_eq!(
            scratch.pool.stats().mapped_bytes(),
            0,
            "bytes that a plan spent"
        );
        scratch.pool.reserve(&mut *scratch.comm, &requests)?;
        let stats = scratch.pool.stats();
        ensure_eq!(
            stats.mapped_bytes(),
            plan.mapped_bytes,
            "mapped bytes of `{policy}`"
        );
        ensure_eq!(
            stats.capacity_bytes(),
            plan.capacity_bytes,
            "capacity of `{policy}`"
        );
        let registrations = stats.registrations;
        ensure_eq!(
            registrations,
            plan.registrations as u64,
            "registrations of `{policy}`"
        );
        for request in &requests {
            scratch.touch(rig, request.bytes)?;
        }
        let after = scratch.pool.stats().registrations;
        if policy != "exact" {
            ensure_eq!(
                after,
                registrations,
                "registrations after reserving, of `{policy}`"
            );
        }
        scratch.close(rig)?;
    }
    Ok(())
}
