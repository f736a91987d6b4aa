//! What is called, in which order and with what.

use std::collections::BTreeMap;

use collectives_core::addr::{WindowId, WindowSlice};
use collectives_core::buffer::Buffer;
use collectives_core::error::Misuse;
use collectives_core::path::{Path, Staging};
use collectives_core::reduce::ReduceOp;
use collectives_core::stream::Stream;
use collectives_core::tensor::{RawTensor, Tensor as _};
use collectives_nccl::device::CudaDevice;

use crate::control;
use crate::life::{Actor, COUNT, PATIENCE, lives, on_ranks, settle};

/// Fails unless there is no more than before two ranks began, but for what a device keeps for good: the
/// kernels of averages, and the stream that records events for others.
pub(crate) fn is_clean(before: &BTreeMap<String, usize>) {
    for (kind, after) in control::live() {
        let kept = match kind.as_str() {
            "Module" | "Stream" => 2,
            _ => 0,
        };
        let before = before.get(&kind).copied().unwrap_or(0);
        assert!(
            after <= before + kept,
            "{after} of {kind}, and {before} before"
        );
    }
    assert_eq!(control::wrong(), Vec::<String>::new());
}

pub(crate) fn whole_life() {
    let before = control::live();
    for life in lives(PATIENCE) {
        life.result.expect("nothing fails");
        assert_eq!(life.thread, (0, 0), "a rank's context and mode are its own");
    }
    is_clean(&before);
}

/// Has every rank do the same with an actor that has worked, and end.
pub(crate) fn on_actors(act: impl Fn(&mut Actor) + Sync) {
    let before = control::live();
    on_ranks(|end| {
        let cuda = CudaDevice::open(0).expect("a device");
        let mut actor = Actor::join(end, &cuda).expect("ranks that join");
        actor.operate().expect("every operation");
        act(&mut actor);
        actor.leave().expect("an end");
        settle(&cuda, PATIENCE);
    });
    is_clean(&before);
}

/// The functions that `call` calls on the first rank; `None` on the others, which call as well.
fn called(actor: &mut Actor, call: impl FnOnce(&mut Actor)) -> Option<Vec<(String, String)>> {
    let logs = actor.handle.rank().0 == 0;
    if logs {
        control::begin_log();
    }
    call(actor);
    logs.then(control::end_log)
}

fn names(calls: &[(String, String)]) -> Vec<&str> {
    calls.iter().map(|(name, _)| name.as_str()).collect()
}

pub(crate) fn zero_copy() {
    on_actors(|actor| {
        let calls = called(actor, |actor| {
            actor.handle.set_staging(Staging::Auto);
            let report = actor
                .handle
                .all_reduce(&mut actor.window, ReduceOp::Sum, &actor.stream)
                .expect("an all-reduce");
            assert_eq!(report.path, Path::ZeroCopy);
        });
        let Some(calls) = calls else { return };
        let expected = [
            "cuStreamIsCapturing",
            "cuCtxGetCurrent",
            "cuCtxPushCurrent_v2",
            "ncclAllReduce",
            "cuCtxPopCurrent_v2",
        ];
        assert_eq!(names(&calls), expected);
        let at = actor.window.operand().addr.value();
        let passed = format!("send={at} recv={at} count={COUNT} dtype=7 op=0");
        assert!(calls[3].1.starts_with(&passed), "{}", calls[3].1);
    });
}

pub(crate) fn staged() {
    on_actors(|actor| {
        let calls = called(actor, |actor| {
            actor.handle.set_staging(Staging::Forced);
            let report = actor
                .handle
                .all_reduce(&mut actor.plain, ReduceOp::Sum, &actor.stream)
                .expect("an all-reduce");
            assert_eq!(report.path, Path::Staged);
        });
        let Some(calls) = calls else { return };
        let work: Vec<_> = calls
            .iter()
            .filter(|(name, _)| !name.starts_with("cuCtx") && name != "cuStreamIsCapturing")
            .collect();
        let [into, reduce, out] = work[..] else {
            panic!("{work:?}");
        };
        assert_eq!(into.0, "cuMemcpyDtoDAsync_v2");
        assert_eq!(reduce.0, "ncclAllReduce");
        assert_eq!(out.0, "cuMemcpyDtoDAsync_v2");
        let tensor = actor.plain.operand().addr.value();
        let slot = into
            .1
            .split(' ')
            .next()
            .and_then(|to| to.strip_prefix("to="));
        let slot = slot.expect("where the copy goes");
        let bytes = COUNT * 4;
        assert!(
            into.1.contains(&format!("from={tensor} bytes={bytes} ")),
            "{}",
            into.1
        );
        assert!(
            reduce
                .1
                .contains(&format!("send={slot} recv={slot} count={COUNT} ")),
            "{}",
            reduce.1
        );
        assert!(
            out.1
                .contains(&format!("to={tensor} from={slot} bytes={bytes} ")),
            "{}",
            out.1
        );
        let asked = |what| calls.iter().filter(|(name, _)| name == what).count();
        assert_eq!(asked("cuStreamIsCapturing"), 1);
        assert_eq!(asked("cuCtxGetCurrent"), 1, "once for all three");
    });
}

/// What of the calls is work on a stream.
fn work(calls: &[(String, String)]) -> Vec<&str> {
    let parts = ["Memcpy", "nccl", "Launch", "EventRecord"];
    let is_work = |name: &&str| parts.iter().any(|part| name.contains(part));
    names(calls).into_iter().filter(is_work).collect()
}

pub(crate) fn staged_order() {
    const COPY: &str = "cuMemcpyDtoDAsync_v2";
    on_actors(|actor| {
        actor.handle.set_staging(Staging::Forced);
        let mut other = Buffer::<f32>::zeroed(&actor.device, COUNT, &actor.stream).expect("memory");
        let averaged = called(actor, |actor| {
            let (plain, stream) = (&mut actor.plain, &actor.stream);
            let report = actor.handle.all_reduce(plain, ReduceOp::Average, stream);
            assert_eq!(report.expect("an average").path, Path::Staged);
        });
        let grouped = called(actor, |actor| {
            let plain = &mut actor.plain;
            let reports = actor.handle.group(&actor.stream, |group| {
                group.all_reduce(plain, ReduceOp::Sum)?;
                group.all_reduce(&mut other, ReduceOp::Sum).map(drop)
            });
            let reports = reports.expect("a group");
            assert!(reports.iter().all(|report| report.path == Path::Staged));
        });
        let raw = std::ptr::with_exposed_provenance_mut(actor.stream.raw());
        let cuda = actor.handle.communicator().cuda_device();
        // SAFETY: The stream lives as long as the actor.
        let theirs = unsafe { cuda.stream_from_raw(raw) }.expect("somebody's stream");
        let marked = called(actor, |actor| {
            let report = actor
                .handle
                .all_reduce(&mut actor.plain, ReduceOp::Sum, &theirs);
            assert_eq!(report.expect("a call").path, Path::Staged);
        });
        let (Some(averaged), Some(grouped), Some(marked)) = (averaged, grouped, marked) else {
            return;
        };
        let (reduce, start, end) = ("ncclAllReduce", "ncclGroupStart", "ncclGroupEnd");
        assert_eq!(work(&averaged), [COPY, reduce, "cuLaunchKernel", COPY]);
        let expected = [COPY, COPY, start, reduce, reduce, end, COPY, COPY];
        assert_eq!(work(&grouped), expected);
        assert_eq!(work(&marked), [COPY, reduce, COPY, "cuEventRecord"]);
    });
}

pub(crate) fn foreign_capture() {
    on_actors(|actor| {
        let raw = actor.stream.raw();
        let objects = || control::live().get("UserObject").copied().unwrap_or(0);
        control::begin_foreign_capture(raw);
        if actor.handle.rank().0 == 0 {
            actor.handle.set_staging(Staging::Auto);
            let before = objects();
            let captured = actor
                .handle
                .all_reduce(&mut actor.window, ReduceOp::Sum, &actor.stream);
            captured.expect("a captured call");
            assert!(
                objects() >= before + 2,
                "the graph owns the buffer and the communicator"
            );
        }
        control::end_foreign_capture(raw).destroy();
    });
}

/// One call that must fail with this misuse, and call nothing that enqueues.
fn refused(
    actor: &mut Actor,
    tensor: &mut RawTensor,
    stream: &Stream,
    wanted: fn(&Misuse) -> bool,
) {
    let mut error = None;
    let calls = called(actor, |actor| {
        error = actor.handle.all_reduce(tensor, ReduceOp::Sum, stream).err();
    });
    let calls = calls.unwrap_or_default();
    let error = error.expect("a refusal");
    assert!(error.misuse().is_some_and(wanted), "{error}");
    assert!(!error.poisons());
    let enqueued = calls
        .iter()
        .find(|(name, _)| name.starts_with("nccl") || name.contains("Memcpy"));
    assert_eq!(enqueued, None);
}

pub(crate) fn misuse() {
    on_actors(|actor| {
        if actor.handle.rank().0 > 0 {
            return;
        }
        let whole = actor.window.operand();
        let slice = whole.window.expect("a window");
        let stream = actor.device.create_stream().expect("a stream");
        actor.handle.set_staging(Staging::Auto);
        let moved = whole
            .slice(0, 32)
            .expect("a part")
            .in_window(slice.advance(4096));
        let beyond = whole.in_window(slice.advance(usize::MAX / 2));
        let unknown = WindowSlice {
            window: WindowId(u64::MAX),
            ..slice
        };
        let outside: fn(&Misuse) -> bool = |misuse| matches!(misuse, Misuse::OutsideWindow { .. });
        let cases = [
            (moved, outside),
            (beyond, outside),
            (whole.in_window(unknown), |misuse| {
                matches!(misuse, Misuse::UnknownWindow)
            }),
        ];
        for (operand, wanted) in cases {
            // SAFETY: The call is refused before anything is enqueued.
            let mut tensor = unsafe { RawTensor::new(operand, actor.window.dtype()) };
            refused(actor, &mut tensor, &stream, wanted);
        }
        let health = actor.handle.health();
        assert!(health.is_ok(), "a refusal spoils nothing: {health:?}");
    });
}
