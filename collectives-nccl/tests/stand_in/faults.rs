//! What becomes of a call that fails.

use std::ffi::c_int;
use std::sync::Barrier;
use std::time::Duration;

use collectives_core::buffer::Buffer;
use collectives_core::error::{ErrorKind, Result};
use collectives_core::path::{Path, Staging};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_nccl::device::CudaDevice;

use crate::control;
use crate::life::{Actor, COUNT, PATIENCE, lives, on_ranks, settle};

/// `CUDA_ERROR_UNKNOWN`, which no caller can do anything about.
const UNKNOWN: c_int = 999;
/// How long a life waits for what may never be given back, because giving it back failed.
const BRIEF: Duration = Duration::from_millis(100);
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;

/// Calls of one function that are made to fail, one in each life: the first and the last ones.
fn places(count: usize) -> impl Iterator<Item = usize> {
    (0..count).filter(move |place| *place < 3 || *place + 2 >= count)
}

/// Calls whose failure leaves what they were to give back.
fn gives_back(name: &str) -> bool {
    [
        "Destroy",
        "Free",
        "Release",
        "Unmap",
        "Deregister",
        "Abort",
        "Finalize",
    ]
    .iter()
    .any(|word| name.contains(word))
}

/// Calls without which a thread does not become what it was.
fn restores(name: &str) -> bool {
    ["cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode"].contains(&name)
}

/// What a failing call becomes on the rank that made it, or on the other.
fn is_expected(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Native { .. }
            | ErrorKind::PeerFailed { .. }
            | ErrorKind::Poisoned { .. }
            | ErrorKind::Aborted { .. }
            | ErrorKind::Unsupported(_)
            | ErrorKind::Capture(_)
            // A rank that failed before anything moved leaves out calls that the other makes.
            | ErrorKind::Mismatch { .. }
    )
}

pub(crate) fn everything() {
    control::reset();
    for life in lives(PATIENCE) {
        life.result.expect("nothing fails");
    }
    let mut counts = control::counts();
    // Only once in a process.
    counts.retain(|(name, _)| name != "cuInit" && name != "ncclGetVersion");
    assert!(counts.len() > 40, "{counts:?}");
    let (mut failed, mut found) = (0, Vec::new());
    for (name, count) in counts {
        for place in places(count) {
            control::reset();
            control::fail(&name, place, UNKNOWN);
            let lives = lives(BRIEF);
            if !control::has_failed() {
                // Threads take turns differently.
                continue;
            }
            let after = format!("after call {place} of {name}: {lives:?}");
            let errors = lives.iter().filter_map(|life| life.result.as_ref().err());
            for error in errors {
                failed += 1;
                if !is_expected(error.kind()) {
                    found.push(format!("{error} {after}"));
                }
            }
            let wrong = control::wrong();
            if !wrong.is_empty() && !gives_back(&name) {
                found.push(format!("{wrong:?} {after}"));
            }
            if lives.iter().any(|life| life.thread != (0, 0)) && !restores(&name) {
                found.push(format!("a thread was left as it was not before {after}"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(failed > 50, "{failed}");
}

/// An all-reduce whose slot one rank cannot make, because a call of the driver fails with this code; the next
/// is staged.
fn slot_fails(name: &'static str, code: c_int) -> Vec<ErrorKind> {
    let ready = Barrier::new(2);
    let kinds = on_ranks(|end| {
        let cuda = CudaDevice::open(0).expect("a device");
        let mut actor = Actor::join(end, &cuda).expect("ranks that join");
        actor.handle.set_staging(Staging::Forced);
        let mut large =
            Buffer::<f32>::zeroed(&actor.device, 1 << 20, &actor.stream).expect("memory");
        if ready.wait().is_leader() {
            control::reset();
            control::fail(name, 0, code);
        }
        ready.wait();
        let mut reduce = || {
            let Actor { handle, stream, .. } = &mut actor;
            handle.all_reduce(&mut large, ReduceOp::Sum, stream)
        };
        let error = reduce().expect_err("a rank cannot make its slot");
        assert!(control::has_failed() && !error.poisons(), "{error}");
        assert_eq!(reduce().expect("the next request").path, Path::Staged);
        drop(large);
        actor.leave().expect("an end");
        settle(&cuda, PATIENCE);
        error.kind().clone()
    });
    assert_eq!(kinds[0], kinds[1]);
    assert_eq!(control::wrong(), Vec::<String>::new());
    kinds
}

pub(crate) fn out_of_memory() {
    let kinds = slot_fails("cuMemCreate", OUT_OF_MEMORY);
    let lacks = |kind: &ErrorKind| matches!(kind, ErrorKind::OutOfMemory { .. });
    assert!(kinds.iter().all(lacks), "{kinds:?}");
}

pub(crate) fn other_failures() {
    for name in [
        "cuEventCreate",
        "cuMemCreate",
        "cuMemAddressReserve",
        "cuMemMap",
    ] {
        let kinds = slot_fails(name, UNKNOWN);
        let tells = |kind: &ErrorKind| match kind {
            ErrorKind::PeerFailed { cause, .. } => cause.contains(name),
            _ => false,
        };
        assert!(kinds.iter().all(tells), "{name}: {kinds:?}");
    }
}

pub(crate) fn odd_buffers() {
    let odd: [fn(&mut Actor) -> Result<()>; 2] = [
        |actor| actor.handle.symmetric_buffer::<f32>(usize::MAX).map(drop),
        |actor| actor.handle.symmetric_buffer::<u8>(usize::MAX).map(drop),
    ];
    for ask in odd {
        let kinds = on_ranks(|end| {
            let cuda = CudaDevice::open(0).expect("a device");
            let mut actor = Actor::join(end, &cuda).expect("ranks that join");
            let error = match actor.handle.rank() {
                Rank(1) => ask(&mut actor),
                _ => actor.handle.symmetric_buffer::<f32>(COUNT).map(drop),
            }
            .expect_err("ranks that differ");
            // Both asking for too much is a want of memory, and no arithmetic gone wrong.
            let huge = actor.handle.symmetric_buffer::<u8>(usize::MAX);
            let huge = huge.expect_err("nobody has that much");
            assert!(
                matches!(huge.kind(), ErrorKind::OutOfMemory { .. }),
                "{huge}"
            );
            actor
                .handle
                .symmetric_buffer::<f32>(COUNT)
                .expect("a buffer");
            actor.leave().expect("an end");
            settle(&cuda, PATIENCE);
            error.kind().clone()
        });
        let named = |kind: &ErrorKind| matches!(kind, ErrorKind::Mismatch { rank: Rank(1), .. });
        assert!(kinds.iter().all(named), "{kinds:?}");
        assert_eq!(kinds[0], kinds[1]);
    }
}
