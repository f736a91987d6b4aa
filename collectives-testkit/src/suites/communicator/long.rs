//! Operations on more elements and bytes than 31 and 32 bits can count.
#![forbid(unsafe_code)]

use collectives_core::dtype::Element;
use collectives_core::memory::Memory;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use half::bf16;

use crate::capability::Capability::LongRanges;
use crate::case::{Case, Failure, Outcome};
use crate::ensure_eq;
use crate::planted::Planted;
use crate::rig::{Handle, Part, Rig};

/// The cases.
pub(super) const CASES: &[Case] = &[Case::new(
    "E16",
    "operations beyond two and four gibibytes reach their last element",
    long,
)
.on(2)
.needs(&[LongRanges])
.catches(Planted::BytesCut)];

/// More than 32 bits of bytes; the last four mebibytes of a range are their own.
const BYTES: usize = (4 << 30) + (4 << 20);

/// Bytes that are looked at on either end of an operand.
const EDGE: usize = 4096;

fn long(rig: &mut Rig<'_>) -> Outcome {
    let Some(range) = rig.probe().long_range(BYTES) else {
        return Err(Failure("there is no long range".to_owned()));
    };
    let comm = rig.communicator()?;
    let none = Box::new(collectives_core::no_scratch::NoScratch);
    let mut handle = rig.handle(comm, none);
    let (me, stream) = (u8::try_from(rig.rank()).unwrap_or(0), rig.stream());
    mark(rig, &range, 1 + me)?;
    // The maximum of a maximum is the same, so it does not matter that pages repeat.
    let mut whole: Part<u8> = Rig::part_as(range.clone());
    handle.all_reduce(&mut whole, ReduceOp::Max, stream)?;
    expect(rig, &range, 2)?;
    let two = 2 << 30;
    broadcast::<u8>(rig, &mut handle, &range, two - 1)?;
    broadcast::<u8>(rig, &mut handle, &range, two + 1)?;
    broadcast::<bf16>(rig, &mut handle, &range, two + 1)?;
    rig.finish(handle)
}

/// Broadcasts the last `count` elements of a range.
fn broadcast<T: Element>(
    rig: &Rig<'_>,
    handle: &mut Handle,
    range: &Memory,
    count: usize,
) -> Outcome {
    let bytes = count * size_of::<T>();
    let last = rig.part(range, BYTES - bytes, bytes)?;
    let me = u8::try_from(rig.rank()).unwrap_or(0);
    mark(rig, &last, 3 + me)?;
    let mut tensor: Part<T> = Rig::part_as(last.clone());
    handle.broadcast(&mut tensor, Rank(1), rig.stream())?;
    expect(rig, &last, 4)
}

/// Both ends of some memory.
fn ends(rig: &Rig<'_>, memory: &Memory) -> Outcome<[Memory; 2]> {
    let first = rig.part(memory, 0, EDGE)?;
    let last = rig.part(memory, memory.bytes() - EDGE, EDGE)?;
    Ok([first, last])
}

/// Fills both ends, each with a value of its own.
fn mark(rig: &Rig<'_>, memory: &Memory, value: u8) -> Outcome {
    let [first, last] = ends(rig, memory)?;
    rig.fill(&first, &[value; EDGE])?;
    Ok(rig.fill(&last, &[value + 10; EDGE])?)
}

/// Fails unless both ends are as they were marked with this value.
fn expect(rig: &Rig<'_>, memory: &Memory, value: u8) -> Outcome {
    rig.device().synchronize(rig.stream())?;
    let [first, last] = ends(rig, memory)?;
    for (which, end, value) in [("first", first, value), ("last", last, value + 10)] {
        let found = rig.contents(&end, EDGE)?;
        let wrong = found.iter().find(|&&byte| byte != value);
        let bytes = memory.bytes();
        ensure_eq!(wrong, None, "a byte of the {which} of {bytes}, for {value}");
    }
    Ok(())
}
