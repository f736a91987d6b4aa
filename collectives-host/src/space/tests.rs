use collectives_core::device::Device;
use rstest::rstest;

use crate::device::HostDevice;
use crate::model::{AddressOrder, Call};

use super::*;

const GRANULE: usize = 64 << 10;

fn device(model: DeviceModel) -> Arc<HostDevice> {
    HostDevice::new(model.with_granule(GRANULE)).unwrap()
}

fn poke(addr: Addr, value: u8) {
    // SAFETY: The tests only poke what the device has mapped: blocks, guards and quarantine.
    unsafe { addr.as_ptr::<u8>().write(value) };
}

fn peek(addr: Addr) -> u8 {
    // SAFETY: As for `poke`.
    unsafe { addr.as_ptr::<u8>().read() }
}

#[test]
fn symmetric_memory_comes_in_granules_less_the_overhead() {
    let device = device(DeviceModel::new().with_overhead(4096).with_guard(100));
    let one = device.allocate_symmetric(GRANULE - 4096).unwrap();
    assert_eq!(one.bytes(), GRANULE - 4096);
    let two = device.allocate_symmetric(GRANULE - 4095).unwrap();
    assert_eq!(two.bytes(), 2 * GRANULE - 4096);
    assert_eq!(device.mapped_bytes(), 3 * GRANULE);
    assert!(one.addr().value().is_multiple_of(GRANULE));
    drop((one, two));
    device.collect();
    let report = device.memory_report();
    assert_eq!((report.mapped_bytes, report.symmetric_blocks), (0, 0));
    assert_eq!(report.peak_bytes, 3 * GRANULE);
}

#[test]
fn ordinary_memory_is_aligned_and_usable() {
    let device = device(DeviceModel::new());
    for bytes in [0, 1, 255, 256, 100_000] {
        let memory = device.allocate(bytes).unwrap();
        assert_eq!(memory.bytes(), bytes);
        assert!(memory.addr().value().is_multiple_of(256));
        if bytes > 0 {
            poke(memory.addr().offset(bytes - 1), 1);
        }
    }
    device.collect();
    assert_eq!(device.memory_report().ordinary_blocks, 0);
    assert_eq!(device.check_memory(), Ok(()));
}

#[test]
fn a_heap_hands_out_again_what_was_freed_last_to_either_kind() {
    let device = device(DeviceModel::new().with_heap(true).with_overhead(512));
    let symmetric = device.allocate_symmetric(GRANULE).unwrap();
    assert_eq!(symmetric.bytes(), 2 * GRANULE - 512);
    assert!(symmetric.addr().value().is_multiple_of(GRANULE));
    let (older, first) = (device.allocate(300).unwrap(), symmetric.addr());
    poke(first.offset(symmetric.bytes() - 1), 1);
    drop(older);
    drop(symmetric);
    device.collect();
    let ordinary = device.allocate(1000).unwrap();
    assert_eq!((ordinary.addr(), ordinary.bytes()), (first, 1000));
    assert!(!device.is_symmetric(&ordinary));
    assert_eq!(device.memory_report().ordinary_bytes, 1024);
    let other = device.allocate_symmetric(1).unwrap();
    assert_ne!(other.addr(), first, "one that is in use");
    drop((ordinary, other));
    device.collect();
    let again = device.allocate_symmetric(GRANULE).unwrap();
    assert_eq!(again.addr(), first, "the only one with room");
    assert!(device.is_symmetric(&again));
    assert_eq!(peek(first.offset(again.bytes() - 1)), 0, "it is zeroed");
    drop(again);
    device.collect();
    assert_eq!(device.memory_report().mapped_bytes, 0);
    assert_eq!(device.memory_report().ordinary_bytes, 0);
}

#[test]
fn the_budget_refuses_and_the_next_smaller_request_works() {
    let poor = device(DeviceModel::new().with_budget(2 * GRANULE));
    let rich = device(DeviceModel::new());
    let kept = poor.allocate_symmetric(GRANULE).unwrap();
    let error = poor.allocate_symmetric(2 * GRANULE).unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::OutOfMemory { bytes, .. } if *bytes == 2 * GRANULE
    ));
    assert!(poor.allocate(GRANULE + 1).is_err());
    assert!(rich.allocate_symmetric(2 * GRANULE).is_ok());
    let small = poor.allocate_symmetric(1).unwrap();
    drop(kept);
    // An allocation drains what was freed.
    assert!(poor.allocate_symmetric(1).is_ok());
    drop(small);
    assert!(poor.allocate_symmetric(usize::MAX).is_err());
    assert!(poor.allocate(usize::MAX).is_err());
}

#[rstest]
#[case(0)]
#[case(GRANULE)]
fn memory_is_given_back_even_when_the_device_went_first(#[case] guard: usize) {
    let device = device(DeviceModel::new().with_guard(guard));
    let memory = device.allocate_symmetric(1).unwrap();
    drop(device);
    poke(memory.addr(), 1);
    drop(memory);
}

#[rstest]
#[case::before(-1)]
#[case::long_before(-64)]
#[case::after(GRANULE as isize)]
#[case::long_after(GRANULE as isize + 63)]
fn an_overrun_is_found_while_the_block_lives_and_when_it_is_freed(#[case] offset: isize) {
    let device = device(DeviceModel::new().with_guard(64));
    let memory = device.allocate_symmetric(GRANULE).unwrap();
    poke(memory.addr(), 7);
    poke(memory.addr().offset(GRANULE - 1), 7);
    assert_eq!(device.check_memory(), Ok(()));
    let at = Addr::from_ptr(memory.addr().as_ptr::<u8>().wrapping_offset(offset));
    poke(at, 7);
    let violation = MemoryViolation::Guard {
        block: memory.addr(),
        bytes: GRANULE,
        at,
        found: 7,
    };
    assert_eq!(device.check_memory(), Err(violation));
    drop(memory);
    assert_eq!(device.check_memory(), Err(violation));
    assert!(violation.to_string().contains("guard"));
}

#[test]
fn the_signal_pad_is_guarded_too() {
    let device = device(DeviceModel::new().with_overhead(256).with_guard(64));
    let memory = device.allocate_symmetric(1).unwrap();
    poke(memory.addr().offset(memory.bytes()), 7);
    assert!(device.check_memory().is_err());
}

#[rstest]
#[case::ordinary(false)]
#[case::symmetric(true)]
fn freed_memory_reads_poison_and_a_late_write_is_found(#[case] symmetric: bool) {
    let device = device(DeviceModel::new().with_poison(0xDB));
    let memory = match symmetric {
        true => device.allocate_symmetric(100).unwrap(),
        false => device.allocate(100).unwrap(),
    };
    let stale = memory.addr();
    poke(stale, 1);
    drop(memory);
    assert_eq!(device.check_memory(), Ok(()));
    assert_eq!(peek(stale.offset(50)), 0xDB);
    poke(stale.offset(99), 1);
    assert!(matches!(
        device.check_memory(),
        Err(MemoryViolation::WrittenAfterFree { at, found: 1, .. }) if at == stale.offset(99)
    ));
}

#[test]
fn the_quarantine_is_bounded_and_checked_when_left() {
    let model = DeviceModel::new().with_poison(0xDB);
    let device = device(model.with_quarantine(2 * GRANULE));
    let stale = device.allocate_symmetric(GRANULE).unwrap().addr();
    device.collect();
    poke(stale, 1);
    for _ in 0..2 {
        device.allocate_symmetric(GRANULE).unwrap();
    }
    device.collect();
    assert_eq!(device.memory_report().quarantined_bytes, 2 * GRANULE);
    assert!(device.check_memory().is_err());
}

#[rstest]
#[case(AddressOrder::Ascending)]
#[case(AddressOrder::Descending)]
#[case(AddressOrder::Shuffled(1))]
fn no_two_live_blocks_overlap(#[case] order: AddressOrder) {
    let device = device(DeviceModel::new().with_address_order(order).with_guard(1));
    let mut kept = Vec::new();
    for round in 0..40 {
        let memory = device.allocate_symmetric(round % 3 * GRANULE + 1).unwrap();
        if round % 4 != 0 {
            kept.push(memory);
        }
    }
    kept.sort_by_key(Memory::addr);
    for pair in kept.windows(2) {
        assert!(pair[0].addr().offset(pair[0].bytes()) < pair[1].addr());
    }
    assert_eq!(device.check_memory(), Ok(()));
}

#[test]
fn the_named_call_is_refused_and_the_next_succeeds() {
    let device = device(
        DeviceModel::new()
            .with_refusal(Call::AllocateSymmetric, 2)
            .with_refusal(Call::Stream, 1),
    );
    assert!(device.allocate_symmetric(1).is_ok());
    let error = device.allocate_symmetric(1).unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::OutOfMemory { bytes: 1, .. }
    ));
    assert!(device.allocate_symmetric(1).is_ok());
    assert_eq!(device.calls(Call::AllocateSymmetric), 3);
    assert!(device.create_stream().is_err());
    assert!(device.create_stream().is_ok());
}

#[test]
fn only_symmetric_memory_of_this_device_is_symmetric() {
    let (mine, other) = (device(DeviceModel::new()), device(DeviceModel::new()));
    let memory = mine.allocate_symmetric(1).unwrap();
    assert!(mine.is_symmetric(&memory));
    assert!(!other.is_symmetric(&memory));
    assert!(!mine.is_symmetric(&mine.allocate(1).unwrap()));
}
