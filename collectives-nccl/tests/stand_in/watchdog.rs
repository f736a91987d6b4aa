//! Peers that never come: what hangs is ended, and says why.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use collectives_core::communicator::{AbortHandle, Communicator as _};
use collectives_core::error::{Error, ErrorKind};
use collectives_core::path::Staging;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::device::CudaDevice;
use collectives_nccl::options::Options;

use crate::control;
use crate::life::{Actor, PATIENCE, on_ranks, settle};

/// How long ranks wait where that is what is tried; long enough for a machine that is busy.
const DEADLINE: Duration = Duration::from_secs(2);
/// What a test says that had to end what no watchdog did.
const GAVE_UP: &str = "no watchdog ended it";

/// Runs `rank` on two ranks, and ends what hangs for much longer than any deadline.
fn watched(
    options: &Options,
    rank: impl Fn(&mut Actor, &Barrier) -> Option<Error> + Sync,
) -> Vec<Option<Error>> {
    let handles = Mutex::new(Vec::<AbortHandle>::new());
    let (barrier, (over, waits)) = (Barrier::new(2), mpsc::channel::<()>());
    let made = &handles;
    thread::scope(|scope| {
        scope.spawn(move || {
            if waits.recv_timeout(3 * PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let handles = made.lock().expect("no rank panics with it");
                handles.iter().for_each(|handle| handle.abort(GAVE_UP));
            }
        });
        let errors = on_ranks(|end| {
            let cuda = CudaDevice::open(0).expect("a device");
            let joined = Actor::join_with(end, &cuda, options.clone());
            let mut actor = joined.expect("ranks that join");
            let handle = actor.handle.communicator().abort_handle();
            handles.lock().expect("no rank panics with it").push(handle);
            let error = rank(&mut actor, &barrier);
            drop(actor);
            settle(&cuda, PATIENCE);
            error
        });
        drop(over);
        assert_eq!(control::wrong(), Vec::<String>::new());
        errors
    })
}

/// Fails unless an error says this, at home or of the other rank.
fn says(error: Option<&Error>, what: &str) {
    let error = error.expect("something that hangs");
    let (ErrorKind::Aborted { cause } | ErrorKind::PeerFailed { cause, .. }) = error.kind() else {
        panic!("{error}");
    };
    assert!(cause.contains(what), "{error}");
}

fn patient() -> Options {
    let mut options = Options::default();
    options.deadline = PATIENCE;
    options.work_deadline = Duration::MAX;
    options
}

pub(crate) fn registration() {
    let mut options = patient();
    options.deadline = DEADLINE;
    let errors = watched(&options, |actor, _| {
        if actor.handle.rank() == Rank(1) {
            control::stay_away();
        }
        let comm = actor.handle.communicator_mut();
        let symmetric = comm.symmetric().expect("symmetric memory");
        let memory = symmetric.allocate(64 << 10, None).expect("memory");
        let error = symmetric.register(&memory).err();
        let health = comm.abort_handle().health();
        assert!(health.is_err(), "nothing goes on after that");
        error
    });
    for error in &errors {
        says(error.as_ref(), "registration did not return within");
    }
}

pub(crate) fn work() {
    let mut options = patient();
    options.work_deadline = DEADLINE;
    let errors = watched(&options, |actor, barrier| {
        let Actor {
            handle,
            stream,
            device,
            plain,
            ..
        } = actor;
        handle.set_staging(Staging::Never);
        if handle.rank() == Rank(0) {
            let reduced = handle.all_reduce(plain, ReduceOp::Sum, stream);
            reduced.expect("a call that is only enqueued");
            let error = device.synchronize(stream).err();
            barrier.wait();
            return error;
        }
        barrier.wait();
        loop {
            if let Err(error) = handle.health() {
                return Some(error);
            }
            thread::yield_now();
        }
    });
    for error in &errors {
        says(error.as_ref(), "made no progress for");
    }
}

pub(crate) fn failure() {
    let errors = watched(&patient(), |actor, barrier| {
        let Actor {
            handle,
            stream,
            device,
            plain,
            ..
        } = actor;
        handle.set_staging(Staging::Never);
        if handle.rank() == Rank(0) {
            let reduced = handle.all_reduce(plain, ReduceOp::Sum, stream);
            reduced.expect("a call that is only enqueued");
            barrier.wait();
            return device.synchronize(stream).err();
        }
        barrier.wait();
        let abort = handle.communicator().abort_handle();
        abort.abort("it had enough");
        abort.health().err()
    });
    for error in &errors {
        says(error.as_ref(), "it had enough");
    }
    let told = errors[0].as_ref().map(Error::kind);
    assert!(
        matches!(told, Some(ErrorKind::PeerFailed { rank: Rank(1), .. })),
        "{told:?}"
    );
}

pub(crate) fn ends() {
    let before = NcclCommunicator::live_count();
    on_ranks(|end| {
        let cuda = CudaDevice::open(0).expect("a device");
        let actor = Actor::join(end, &cuda).expect("ranks that join");
        actor.leave().expect("an end");
        settle(&cuda, PATIENCE);
    });
    // One of a case before may end meanwhile.
    let begun = Instant::now();
    while NcclCommunicator::live_count() > before {
        assert!(begun.elapsed() < PATIENCE, "it is still watched");
        thread::sleep(Duration::from_millis(1));
    }
}
