//! A policy's answer, held against the cap and the policy's own contract.

use collectives_core::error::Refusal;

use crate::policy::{Ask, Decision, Policy, SlotView};

/// A decision that keeps the policy's contract.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict {
    Hit(usize),
    Grow { capacity: usize, how: How },
}

/// What a new slot does to those there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// It comes beside them.
    Beside,
    /// It retires them.
    Replacing,
    /// It maps the bytes of the one at this index again, and retires it, or begins an arena.
    Extending(Option<usize>),
}

/// What the policy decides, where the cap and its own contract allow it.
#[inline]
pub(crate) fn judge(
    policy: &dyn Policy,
    cap: Option<usize>,
    views: &[SlotView],
    ask: &Ask,
) -> Result<Verdict, Refusal> {
    if let Some(cap) = cap
        && ask.bytes > cap
    {
        return Err(Refusal::OverCap { cap });
    }
    match policy.decide(views, ask) {
        Decision::Hit(index)
            if views
                .get(index)
                .is_some_and(|slot| !slot.leased && slot.capacity >= ask.bytes) =>
        {
            Ok(Verdict::Hit(index))
        }
        Decision::Grow { capacity, retire } if capacity >= ask.bytes => {
            let how = if retire { How::Replacing } else { How::Beside };
            Ok(Verdict::Grow { capacity, how })
        }
        Decision::Extend { slot, capacity }
            if capacity >= ask.bytes && extends(views, slot, capacity) =>
        {
            let how = How::Extending(slot);
            Ok(Verdict::Grow { capacity, how })
        }
        Decision::Refuse => Err(Refusal::Policy),
        decision => {
            let (policy, bytes) = (policy.name(), ask.bytes);
            tracing::error!(policy, ?decision, bytes, "the policy's answer is void");
            Err(Refusal::Policy)
        }
    }
}

/// Whether the slot, if there is one, is free and smaller.
fn extends(views: &[SlotView], slot: Option<usize>, capacity: usize) -> bool {
    let free = |view: &SlotView| !view.leased && view.capacity < capacity;
    slot.is_none_or(|index| views.get(index).is_some_and(free))
}
