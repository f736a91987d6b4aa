//! Windows that map the memory of others.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use collectives_core::addr::{Addr, Operand, WindowId, WindowSlice};
use collectives_core::collective::{Counts, Op};
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::error::{ErrorKind, Misuse, Unsupported};
use collectives_core::memory::Memory;
use collectives_core::rank::DeviceId;
use collectives_core::reduce::ReduceOp;
use collectives_host::model::{Call, DeviceModel};
use collectives_host::world::HostWorld;
use rstest::rstest;

use crate::common::{Rig, call, on_every_rank};

const GRANULE: usize = 2 << 20;

/// Files behind the memory of a device, as the kernel counts them: how many, how long, and the
/// bytes of the pages in use.
fn pages(device: DeviceId) -> (usize, u64, u64) {
    let name = format!("/memfd:collectives-{device} (deleted)");
    let files = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        // Other threads close theirs meanwhile.
        let ours = fs::read_link(&path).is_ok_and(|file| file.to_str() == Some(&*name));
        ours.then(|| fs::metadata(&path).unwrap())
    });
    files.fold((0, 0, 0), |(files, length, used), file| {
        (files + 1, length + file.len(), used + file.blocks() * 512)
    })
}

fn fill(addr: Addr, bytes: usize, value: u8) {
    // SAFETY: The range is this rank's own, and nobody uses it meanwhile.
    unsafe { addr.as_ptr::<u8>().write_bytes(value, bytes) };
}

fn contents(addr: Addr, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    // SAFETY: As in `fill`.
    unsafe { found.as_mut_ptr().copy_from(addr.as_ptr::<u8>(), bytes) };
    found
}

/// Generations of these sizes in granules, each over the one before.
fn generations(rig: &mut Rig, granules: &[usize]) -> Vec<(Memory, WindowId)> {
    let symmetric = rig.comm.symmetric().unwrap();
    symmetric.extensible().unwrap();
    let mut made: Vec<(Memory, WindowId)> = Vec::new();
    for granules in granules {
        let last = made.last().map(|(_, window)| *window);
        let memory = symmetric.allocate(granules * GRANULE, last).unwrap();
        let window = symmetric.register(&memory).unwrap();
        made.push((memory, window));
    }
    made
}

#[test]
// invariants 51, 53
fn what_is_written_through_one_generation_is_read_through_every_other() {
    on_every_rank(2, |rig| {
        let device = rig.comm.device().id();
        let made = generations(rig, &[1, 2, 3, 5]);
        let value = rig.rank() as u8 + 1;
        for (writer, (memory, _)) in made.iter().enumerate() {
            let value = value + 16 * writer as u8;
            fill(memory.addr(), memory.bytes(), value);
            for (reader, _) in &made {
                let shared = reader.bytes().min(memory.bytes());
                assert_eq!(contents(reader.addr(), shared), vec![value; shared]);
            }
        }
        for (index, (one, _)) in made.iter().enumerate() {
            for (other, _) in &made[..index] {
                let ranges = [one, other].map(|memory| Operand::new(memory.addr(), memory.bytes()));
                assert!(!ranges[0].overlaps(ranges[1]), "one address is there once");
            }
        }
        let five = 5 * GRANULE as u64;
        assert_eq!(pages(device), (4, five, five), "every page is there once");
        let report = rig.comm.host_device().memory_report();
        assert_eq!(
            (report.mapped_bytes, report.address_bytes),
            (5 * GRANULE, 11 * GRANULE)
        );
    });
}

#[test]
fn an_operation_on_the_oldest_window_shows_in_the_newest_on_every_rank() {
    on_every_rank(3, |rig| {
        let made = generations(rig, &[1, 4]);
        let operand = |which: usize, bytes: usize| {
            let window = WindowSlice {
                comm: rig.comm.info().id,
                window: made[which].1,
                offset: 4096,
            };
            Operand::new(made[which].0.addr().offset(4096), bytes).in_window(window)
        };
        let (old, new) = (operand(0, 4 * 1000), operand(1, 4 * 1000));
        let ones: Vec<i32> = vec![rig.rank() as i32 + 1; 1000];
        // SAFETY: The range is this rank's own.
        unsafe { new.addr.as_ptr::<i32>().copy_from(ones.as_ptr(), 1000) };
        rig.barrier();
        let sum = Op::AllReduce(ReduceOp::Sum);
        rig.run(&[call(sum, DType::I32, old, old, Counts::Even(1000))])
            .unwrap();
        let found = contents(new.addr, 4000);
        let expected: Vec<_> = 6_i32.to_ne_bytes().repeat(1000);
        assert_eq!(found, expected);
        rig.barrier();
    });
}

#[test]
// invariant 54
fn a_retired_generation_takes_its_addresses_and_leaves_the_bytes() {
    on_every_rank(2, |rig| {
        let id = rig.comm.device().id();
        let device = Arc::clone(rig.comm.host_device());
        let mut made = generations(rig, &[1, 2, 4]);
        fill(made[2].0.addr(), 4 * GRANULE, 7);
        let symmetric = rig.comm.symmetric().unwrap();
        let (middle, window) = made.remove(1);
        symmetric.retire(window).unwrap();
        drop(middle);
        rig.comm.device().collect();
        assert_eq!(device.memory_report().mapped_bytes, 4 * GRANULE);
        assert_eq!(device.memory_report().address_bytes, 5 * GRANULE);
        assert_eq!(
            contents(made[1].0.addr(), 4 * GRANULE),
            vec![7; 4 * GRANULE]
        );
        // What only the newest maps goes with it, and the rest with the oldest.
        for left in [1, 0] {
            let symmetric = rig.comm.symmetric().unwrap();
            let (memory, window) = made.pop().unwrap();
            symmetric.retire(window).unwrap();
            drop(memory);
            rig.comm.device().collect();
            assert_eq!(device.memory_report().mapped_bytes, left * GRANULE);
            assert_eq!(pages(id).1, (left * GRANULE) as u64);
        }
        assert!(device.check_memory().is_ok());
    });
}

#[test]
fn a_freed_generation_is_poisoned_without_touching_the_bytes_of_others() {
    let model = |_| DeviceModel::new().with_guard(256).with_poison(0xDB);
    HostWorld::new(1).model(model).run(|comm| {
        let mut rig = Rig::new(comm);
        let device = Arc::clone(rig.comm.host_device());
        let mut made = generations(&mut rig, &[1, 2]);
        fill(made[1].0.addr(), 2 * GRANULE, 3);
        let (old, window) = made.remove(0);
        let stale = old.addr();
        rig.comm.symmetric().unwrap().retire(window).unwrap();
        drop(old);
        rig.comm.device().collect();
        assert_eq!(contents(stale, 64), [0xDB; 64], "a stale read sees poison");
        assert_eq!(
            contents(made[0].0.addr(), 2 * GRANULE),
            vec![3; 2 * GRANULE]
        );
        assert!(device.check_memory().is_ok());
        fill(stale, 1, 0);
        assert!(device.check_memory().is_err(), "a stale write is found");
        fill(stale, 1, 0xDB);
        // A guard of the newest generation lies behind its last byte.
        fill(made[0].0.addr().offset(2 * GRANULE), 1, 0);
        assert!(device.check_memory().is_err());
    });
}

#[test]
fn only_the_new_bytes_count_against_the_budget() {
    let model = |_| DeviceModel::new().with_budget(4 * GRANULE);
    HostWorld::new(2).model(model).run(|comm| {
        let mut rig = Rig::new(comm);
        let made = generations(&mut rig, &[2, 3, 4]);
        let symmetric = rig.comm.symmetric().unwrap();
        let error = symmetric
            .allocate(5 * GRANULE, Some(made[2].1))
            .unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::OutOfMemory { .. }),
            "{error}"
        );
        assert_eq!(
            rig.comm.host_device().memory_report().mapped_bytes,
            4 * GRANULE
        );
        rig.barrier();
    });
}

#[rstest]
#[case::told(DeviceModel::new().with_addresses(None))]
#[case::pad(DeviceModel::new().with_overhead(512))]
#[case::pages(DeviceModel::new().with_granule(256))]
fn a_device_that_cannot_map_twice_says_so(#[case] model: DeviceModel) {
    HostWorld::new(1)
        .model(move |_| model.clone())
        .run(|mut comm| {
            let symmetric = comm.symmetric().unwrap();
            let error = symmetric.extensible().unwrap_err();
            let ErrorKind::Unsupported(Unsupported::Aliasing(_)) = error.kind() else {
                panic!("{error}");
            };
        });
}

#[test]
fn what_was_not_made_extensible_and_what_is_no_window_are_refused() {
    let model = |_| DeviceModel::new().with_refusal(Call::AllocateSymmetric, 3);
    HostWorld::new(1).model(model).run(|mut comm| {
        let symmetric = comm.symmetric().unwrap();
        let memory = symmetric.allocate(1, None).unwrap();
        let window = symmetric.register(&memory).unwrap();
        let error = symmetric.allocate(2 * GRANULE, Some(window)).unwrap_err();
        assert!(matches!(
            error.kind(),
            ErrorKind::Unsupported(Unsupported::Aliasing(_))
        ));
        let error = symmetric.allocate(1, Some(WindowId(9))).unwrap_err();
        assert_eq!(error.misuse(), Some(&Misuse::UnknownWindow));
        symmetric.extensible().unwrap();
        let refused = symmetric.allocate(1, None).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::OutOfMemory { .. }));
        let memory = symmetric.allocate(1, None).unwrap();
        let window = symmetric.register(&memory).unwrap();
        assert!(symmetric.allocate(2 * GRANULE, Some(window)).is_ok());
    });
}
