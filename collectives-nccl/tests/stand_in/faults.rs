//! What becomes of a call that fails.

use std::ffi::c_int;
use std::time::Duration;

use collectives_core::buffer::Buffer;
use collectives_core::error::ErrorKind;
use collectives_core::path::{Path, Staging};
use collectives_core::reduce::ReduceOp;
use collectives_nccl::device::CudaDevice;

use crate::control;
use crate::life::{Actor, PATIENCE, lives, on_ranks, settle};

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
            // Who gets no memory for a slot, for whatever reason, takes it from all.
            | ErrorKind::OutOfMemory { .. }
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

pub(crate) fn out_of_memory() {
    let kinds = on_ranks(|end| {
        let cuda = CudaDevice::open(0).expect("a device");
        let mut actor = Actor::join(end, &cuda).expect("ranks that join");
        actor.handle.set_staging(Staging::Forced);
        let mut large =
            Buffer::<f32>::zeroed(&actor.device, 1 << 20, &actor.stream).expect("memory");
        // Ranks agree before they allocate, so this comes before either does.
        if actor.handle.rank().0 == 0 {
            control::reset();
            control::fail("cuMemCreate", 0, OUT_OF_MEMORY);
        }
        let mut reduce = || {
            let Actor { handle, stream, .. } = &mut actor;
            handle.all_reduce(&mut large, ReduceOp::Sum, stream)
        };
        let error = reduce().expect_err("a rank has no memory");
        assert!(control::has_failed() && !error.poisons(), "{error}");
        assert_eq!(reduce().expect("the next request").path, Path::Staged);
        drop(large);
        actor.leave().expect("an end");
        settle(&cuda, PATIENCE);
        error.kind().clone()
    });
    assert!(
        matches!(kinds[0], ErrorKind::OutOfMemory { .. }),
        "{kinds:?}"
    );
    assert_eq!(kinds[0], kinds[1]);
    assert_eq!(control::wrong(), Vec::<String>::new());
}
