//! The few calls of the driver that somebody who works by hand makes.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use collectives_core::error::{Error, ErrorKind, Result};
use libloading::os::unix::Library;

type Handle = *mut c_void;

/// The driver, with the context of one GPU current on this thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Driver {
    copy: unsafe extern "C" fn(u64, u64, usize, Handle) -> c_int,
    event_create: unsafe extern "C" fn(*mut Handle, c_uint) -> c_int,
    event_record: unsafe extern "C" fn(Handle, Handle) -> c_int,
    event_elapsed: unsafe extern "C" fn(*mut f32, Handle, Handle) -> c_int,
    stream_synchronize: unsafe extern "C" fn(Handle) -> c_int,
    /// Around what is timed.
    events: [Handle; 2],
}

fn check(what: &str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Error::new(ErrorKind::System(format!(
            "{what} returned {code}"
        )))),
    }
}

fn system(error: libloading::Error) -> Error {
    Error::new(ErrorKind::System(error.to_string()))
}

impl Driver {
    /// Loads the driver and makes the primary context of a GPU current for good.
    pub(crate) fn new(ordinal: usize) -> Result<Self> {
        // SAFETY: The device has loaded the driver already; it is never unloaded.
        let library = unsafe { Library::new("libcuda.so.1") }.map_err(system)?;
        macro_rules! symbol {
            ($name:literal, $ty:ty) => {{
                // SAFETY: The type of this function in cuda.h.
                let symbol = unsafe { library.get::<$ty>($name) }.map_err(system)?;
                *symbol
            }};
        }
        let retain = symbol!(
            b"cuDevicePrimaryCtxRetain",
            unsafe extern "C" fn(*mut Handle, c_int) -> c_int
        );
        let set_current = symbol!(b"cuCtxSetCurrent", unsafe extern "C" fn(Handle) -> c_int);
        let mut context = ptr::null_mut();
        let ordinal = c_int::try_from(ordinal).unwrap_or(-1);
        // SAFETY: Writes one handle, which is never released.
        check("retain", unsafe { retain(&raw mut context, ordinal) })?;
        // SAFETY: The context is retained for ever.
        check("set current", unsafe { set_current(context) })?;
        let mut driver = Self {
            copy: symbol!(
                b"cuMemcpyDtoDAsync_v2",
                unsafe extern "C" fn(u64, u64, usize, Handle) -> c_int
            ),
            event_create: symbol!(
                b"cuEventCreate",
                unsafe extern "C" fn(*mut Handle, c_uint) -> c_int
            ),
            event_record: symbol!(
                b"cuEventRecord",
                unsafe extern "C" fn(Handle, Handle) -> c_int
            ),
            event_elapsed: symbol!(
                b"cuEventElapsedTime",
                unsafe extern "C" fn(*mut f32, Handle, Handle) -> c_int
            ),
            stream_synchronize: symbol!(
                b"cuStreamSynchronize",
                unsafe extern "C" fn(Handle) -> c_int
            ),
            events: [ptr::null_mut(); 2],
        };
        for event in &mut driver.events {
            // SAFETY: Writes one handle; 0 is an event that times.
            check("event", unsafe { (driver.event_create)(event, 0) })?;
        }
        std::mem::forget(library);
        Ok(driver)
    }

    /// Copies in stream order.
    ///
    /// # Safety
    ///
    /// Both ranges are valid and do not overlap, and the stream is valid.
    pub(crate) unsafe fn copy(
        &self,
        to: usize,
        from: usize,
        bytes: usize,
        stream: Handle,
    ) -> Result<()> {
        // SAFETY: By the caller.
        check("copy", unsafe {
            (self.copy)(to as u64, from as u64, bytes, stream)
        })
    }

    /// Microseconds that the device spends on what `enqueue` enqueues.
    pub(crate) fn time(&self, stream: Handle, enqueue: impl FnOnce() -> Result<()>) -> Result<f64> {
        let [begin, end] = self.events;
        // SAFETY: The handles are valid.
        check("record", unsafe { (self.event_record)(begin, stream) })?;
        enqueue()?;
        // SAFETY: As above.
        check("record", unsafe { (self.event_record)(end, stream) })?;
        // SAFETY: As above.
        check("synchronize", unsafe { (self.stream_synchronize)(stream) })?;
        let mut milliseconds = 0.0;
        // SAFETY: Both events are complete.
        check("elapsed", unsafe {
            (self.event_elapsed)(&raw mut milliseconds, begin, end)
        })?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}
