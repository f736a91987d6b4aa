//! A capture in global mode, which forbids much to every thread of the process.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::mpsc::channel;
use std::thread;

use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::layered::symmetric_of;
use libloading::os::unix::{Library, Symbol};

use crate::rank::Ctx;
use crate::{Outcome, Said, ensure};

type Begin = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type End = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;

fn code(what: &str, code: c_int) -> Outcome {
    ensure(code == 0, || format!("{what} returned {code}"))
}

/// Captures a copy on `stream` in global mode, while the other side of the channels works.
fn capturing(
    device: &dyn Device,
    stream: &collectives_core::stream::StreamRef,
    begun: &std::sync::mpsc::Sender<()>,
    worked: &std::sync::mpsc::Receiver<()>,
) -> Outcome {
    // SAFETY: The driver is loaded already, by the device.
    let library = unsafe { Library::new("libcuda.so.1") }.said("libcuda")?;
    // SAFETY: The types of these functions in cuda.h.
    let begin: Symbol<Begin> = unsafe { library.get(b"cuStreamBeginCapture_v2") }.said("begin")?;
    // SAFETY: As above.
    let end: Symbol<End> = unsafe { library.get(b"cuStreamEndCapture") }.said("end")?;
    // SAFETY: As above.
    let destroy: Symbol<Destroy> = unsafe { library.get(b"cuGraphDestroy") }.said("destroy")?;
    let memory = device.allocate(1 << 16).said("allocate")?;
    let raw = ptr::with_exposed_provenance_mut(stream.raw());
    // SAFETY: The stream is valid; 0 is the global mode.
    code("begin", unsafe { begin(raw, 0) })?;
    let copied = {
        let _ = begun.send(());
        let _ = worked.recv();
        // SAFETY: The two halves of the memory do not overlap, and the graph never runs.
        unsafe {
            device.copy(
                memory.addr(),
                memory.addr().offset(1 << 15),
                1 << 15,
                stream,
            )
        }
    };
    let mut graph = ptr::null_mut();
    // SAFETY: The capture began on this stream, on this thread.
    let ended = unsafe { end(raw, &raw mut graph) };
    copied.said("the captured copy")?;
    code("end", ended)?;
    // SAFETY: The graph is ours.
    code("destroy", unsafe { destroy(graph) })
}

pub(crate) fn capture(ctx: &mut Ctx) -> Outcome {
    let mut comm = ctx.connect()?;
    let stream = ctx.device.create_stream().said("stream")?;
    let (begun, has_begun) = channel();
    let (worked, has_worked) = channel();
    let device = std::sync::Arc::clone(&ctx.device);
    thread::scope(|scope| -> Outcome {
        let stream = &stream;
        let captured = scope.spawn(move || capturing(&*device, stream, &begun, &has_worked));
        if has_begun.recv().is_ok() {
            // Meanwhile this thread registers, sets another communicator up, allocates and waits.
            let work = || -> Outcome {
                let symmetric = symmetric_of(&mut comm).said("symmetric")?;
                let memory = symmetric.allocate(2 << 20, None).said("allocate")?;
                let window = symmetric.register(&memory).said("register")?;
                let mut second = ctx.connect()?;
                let buffer = ctx.device.allocate(1 << 20).said("allocate")?;
                drop(buffer);
                ctx.device.collect();
                ctx.sync()?;
                // The watchdog looks at least once.
                thread::sleep(std::time::Duration::from_millis(250));
                let _ = second.shutdown().said("shutdown")?;
                symmetric_of(&mut comm)
                    .said("symmetric")?
                    .retire(window)
                    .said("retire")
            };
            let outcome = {
                let mut work = work;
                work()
            };
            let _ = worked.send(());
            outcome?;
        }
        captured
            .join()
            .unwrap_or_else(|_| Err("the capturing thread panicked".to_owned()))
    })?;
    let _ = comm.shutdown().said("shutdown")?;
    Ok(())
}
