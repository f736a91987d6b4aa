//! How a process ends that has MPI: finalised after success, and otherwise with the whole job.

use std::ffi::{c_int, c_void};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use std::{env, ptr};

use mpi::ffi;

use crate::environment::{Question, asked, is_open_mpi};
use crate::raw::Comm;

/// The exit code of a job that this backend ends.
pub(crate) const FAILED: c_int = 70;

/// How long MPI may take to end the job before this process ends by itself, which makes the launcher
/// end the others.
const MERCY: Duration = Duration::from_secs(3);

/// How long the launcher gets to read the message. Hydra forgets what it has not read when the job ends.
const HEARD: Duration = Duration::from_millis(100);

/// How long finalising may wait for ranks that do not come.
const FINALIZE: Duration = Duration::from_secs(60);

/// Has MPI finalised when the process ends well, and the job aborted when it does not.
pub(crate) fn finalize_at_exit() {
    // SAFETY: The function is one of this program and takes no argument from here.
    let refused = unsafe { on_exit(at_exit, ptr::null_mut()) };
    if refused != 0 {
        tracing::error!("MPI will not be finalised: the system keeps no more exit handlers");
    }
}

extern "C" fn at_exit(status: c_int, _: *mut c_void) {
    if matches!(asked(Question::Finalized), Ok(true)) {
        return;
    }
    if status != 0 {
        abort_job(&format!("a rank ended with code {status}"), status);
    }
    last_resort("MPI_Finalize waits for ranks that do not come", FINALIZE);
    // SAFETY: MPI is initialised, and this is the thread that ends the process.
    let code = unsafe { ffi::MPI_Finalize() };
    if code != 0 {
        let _ = writeln!(
            std::io::stderr(),
            "collectives-mpi: MPI_Finalize returned {code}"
        );
    }
}

/// Ends the job on all ranks; this process ends even where MPI cannot end the others.
pub(crate) fn abort_job(why: &str, code: c_int) -> ! {
    static ENDING: AtomicBool = AtomicBool::new(false);
    if !ENDING.swap(true, Ordering::SeqCst) {
        let _ = writeln!(std::io::stderr(), "collectives-mpi: the job ends: {why}");
        last_resort("MPI_Abort did not end the job", MERCY);
        thread::sleep(HEARD);
        if is_mpirun() {
            _exit(code);
        }
        Comm::world().abort(code);
    }
    // Another thread is ending the job, or MPI returned.
    thread::sleep(MERCY);
    _exit(code)
}

/// Whether Open MPI's mpirun started this process, which ends the others when one ends with a code.
///
/// Asked to by `MPI_Abort` while another rank finalises it may hang for ever itself, though all ranks are
/// gone: with 4.1.4 it did in four jobs of nineteen, and in one of twenty-seven whose rank just ended.
fn is_mpirun() -> bool {
    is_open_mpi() && env::var_os("OMPI_COMM_WORLD_RANK").is_some()
}

/// Ends this process after a while, unless it has ended by then.
fn last_resort(why: &'static str, after: Duration) {
    let waiting = thread::Builder::new().name("mpi-last-resort".to_owned());
    let _ = waiting.spawn(move || {
        thread::sleep(after);
        let _ = writeln!(
            std::io::stderr(),
            "collectives-mpi: {why}; this rank ends alone"
        );
        _exit(FAILED)
    });
}

unsafe extern "C" {
    /// The C library's: runs the function, with the exit code, when the process ends by `exit` or by
    /// returning from `main`. The last one registered runs first, so before MPI's own.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;

    /// Unlike `exit` it runs no handlers, which could wait for the thread that hangs. It takes any
    /// number, touches no memory and never returns, and is so safe to call.
    safe fn _exit(code: c_int) -> !;
}
