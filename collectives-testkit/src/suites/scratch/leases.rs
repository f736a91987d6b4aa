//! What a lease is: where it lies, whom it excludes, and what its end changes.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use collectives_core::scratch::{Lease, SCRATCH_ALIGNMENT, SlotId};
use collectives_core::stats::SlotStats;

use super::Scratch;
use crate::capability::Capability::Symmetric;
use crate::case::{Case, Outcome};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::values::Dice;
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "I11",
        "a lease lies inside exactly one window",
        inside_one_window,
    )
    .needs(&[Symmetric])
    .catches(Planted::WindowsNotFound),
    Case::new(
        "I12",
        "slots are aligned and at the same offset on every rank",
        aligned,
    )
    .needs(&[Symmetric])
    .catches(Planted::UnevenOffsets),
    Case::new("I13", "live leases never overlap", no_overlap)
        .needs(&[Symmetric])
        .catches(Planted::LeasesEndAtOnce),
    Case::new("I14", "a forgotten lease keeps its slot", forgotten)
        .needs(&[Symmetric])
        .catches(Planted::LeasesEndAtOnce),
    Case::new("I15", "the smallest slot that fits is used", best_fit)
        .needs(&[Symmetric])
        .catches(Planted::WorstFit),
    Case::new("I17", "a slot never changes its address", addresses_stay)
        .needs(&[Symmetric])
        .catches(Planted::SlotsMove),
    Case::new(
        "I18",
        "scratch never aliases a user's buffer",
        never_aliases,
    )
    .needs(&[Symmetric])
    .catches(Planted::AllocatedTwice),
    Case::new(
        "I20",
        "the order of releases changes nothing",
        release_orders,
    )
    .needs(&[Symmetric])
    .catches(Planted::ReleasedInStackOrder),
    Case::new(
        "I20",
        "a lease ends alike by itself and through its allocator",
        release_ways,
    )
    .needs(&[Symmetric])
    .catches(Planted::ReleasedOutOfOrderLost),
];

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
            let lease: Lease = live.remove(dice.roll(live.len()));
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
    let mut data = handle.symmetric_buffer::<f32>(count)?;
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
    rig.finish(handle)
}

fn release_orders(rig: &mut Rig<'_>) -> Outcome {
    let first = after_leases(rig, [0, 1, 2], [false; 3])?;
    for order in [[2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let state = after_leases(rig, order, [false; 3])?;
        ensure_eq!(state, first, "the state after another order of releases");
    }
    Ok(())
}

fn release_ways(rig: &mut Rig<'_>) -> Outcome {
    let first = after_leases(rig, [0, 1, 2], [false; 3])?;
    for through in [[true; 3], [true, false, true], [false, true, false]] {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let state = after_leases(rig, order, through)?;
            ensure_eq!(state, first, "the state after leases ended another way");
        }
    }
    Ok(())
}

/// The slots that later requests are served by, and all slots, after three leases ended in this order,
/// each through the allocator or by itself.
fn after_leases(
    rig: &mut Rig<'_>,
    order: [usize; 3],
    through: [bool; 3],
) -> Outcome<(Vec<SlotId>, Vec<SlotStats>)> {
    let mut scratch = Scratch::new(rig, "geometric")?;
    let mut leases = Vec::new();
    for bytes in [1000, 2 * rig.granule(), 3000] {
        let lease = rig.lease(&mut *scratch.comm, &mut *scratch.pool, bytes)?;
        leases.push(Some(lease));
    }
    for index in order {
        match leases[index].take() {
            Some(lease) if through[index] => scratch.pool.release(lease)?,
            Some(lease) => lease.complete()?,
            None => {}
        }
    }
    let mut served = Vec::new();
    for bytes in [3000, 1000, 2 * rig.granule(), 10] {
        let lease = rig.lease(&mut *scratch.comm, &mut *scratch.pool, bytes)?;
        served.push(lease.slot());
        lease.complete()?;
    }
    let slots = scratch.pool.stats().slots;
    scratch.close(rig)?;
    Ok((served, slots))
}
