//! Messages that are under way.

use std::ffi::c_int;

use collectives_core::error::Result;
use mpi::ffi;

use crate::error::check;
use crate::raw::{Comm, byte, int};

/// Messages that have arrived when [`Requests::wait`] returns.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    requests: Vec<ffi::MPI_Request>,
    /// Of each request that receives: its index, the sender and the bytes expected.
    receives: Vec<(usize, c_int, c_int)>,
}

impl Requests {
    /// Starts to send bytes to a rank, with a tag.
    ///
    /// # Safety
    ///
    /// They are valid, and nobody writes them, until the requests were waited for.
    pub(crate) unsafe fn send(
        &mut self,
        comm: Comm,
        bytes: (*const u8, usize),
        (to, tag): (c_int, c_int),
    ) -> Result<()> {
        let (send, count) = (bytes.0.cast(), int(bytes.1)?);
        let request = self.next();
        // SAFETY: By the caller.
        let code = unsafe { ffi::MPI_Isend(send, count, byte(), to, tag, comm.handle(), request) };
        check("MPI_Isend", code)
    }

    /// Starts to receive bytes from a rank, with a tag.
    ///
    /// # Safety
    ///
    /// There is room for them, which nobody else uses until the requests were waited for.
    pub(crate) unsafe fn receive(
        &mut self,
        comm: Comm,
        room: (*mut u8, usize),
        (from, tag): (c_int, c_int),
    ) -> Result<()> {
        let (recv, count) = (room.0.cast(), int(room.1)?);
        let request = self.next();
        // SAFETY: By the caller.
        let code =
            unsafe { ffi::MPI_Irecv(recv, count, byte(), from, tag, comm.handle(), request) };
        check("MPI_Irecv", code)?;
        self.receives.push((self.requests.len() - 1, from, count));
        Ok(())
    }

    /// Waits for all; gives the first receive that got other than what it expected: the sender, the
    /// bytes that came, and the bytes that were expected.
    pub(crate) fn wait(mut self) -> Result<Option<(c_int, c_int, c_int)>> {
        self.wait_for_all()
    }

    fn next(&mut self) -> *mut ffi::MPI_Request {
        // SAFETY: The shim's constant is initialised before `main`.
        self.requests.push(unsafe { ffi::RSMPI_REQUEST_NULL });
        let last = self.requests.len() - 1;
        &raw mut self.requests[last]
    }

    fn wait_for_all(&mut self) -> Result<Option<(c_int, c_int, c_int)>> {
        let mut requests = std::mem::take(&mut self.requests);
        if requests.is_empty() {
            return Ok(None);
        }
        // SAFETY: A status is numbers, for which zeroes are values.
        let empty: ffi::MPI_Status = unsafe { std::mem::zeroed() };
        let mut statuses = vec![empty; requests.len()];
        let count = int(requests.len())?;
        let requests = requests.as_mut_ptr();
        // SAFETY: There is a status for each request, all of which were started or are null.
        let code = unsafe { ffi::MPI_Waitall(count, requests, statuses.as_mut_ptr()) };
        if code == ffi::MPI_ERR_IN_STATUS.cast_signed() {
            let failed = statuses.iter().map(|status| status.MPI_ERROR);
            for error in failed.filter(|&error| error != ffi::MPI_ERR_PENDING.cast_signed()) {
                check("MPI_Waitall", error)?;
            }
        }
        check("MPI_Waitall", code)?;
        for &(index, from, expected) in &self.receives {
            let mut came = 0;
            // SAFETY: The status is one of a receive that is complete.
            let code =
                unsafe { ffi::MPI_Get_count(&raw const statuses[index], byte(), &raw mut came) };
            check("MPI_Get_count", code)?;
            if came != expected {
                return Ok(Some((from, came, expected)));
            }
        }
        Ok(None)
    }
}

impl Drop for Requests {
    /// Where starting one of several failed, the others still use their operands.
    fn drop(&mut self) {
        if let Err(error) = self.wait_for_all() {
            tracing::error!(%error, "messages beside one that failed");
        }
    }
}
