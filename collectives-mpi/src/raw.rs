//! One checked function per MPI function that is used, with MPI's names.

use std::ffi::{c_int, c_void};

use collectives_core::error::{Error, Misuse, Result};
use mpi::ffi;

use crate::error::check;

/// A communicator. MPI's handle is a number in one library and a pointer in another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Comm(ffi::MPI_Comm);

// SAFETY: MPI allows a communicator to be used from any thread, one at a time, which the order of
// operations keeps to; the handle itself is a value.
unsafe impl Send for Comm {}
// SAFETY: As above.
unsafe impl Sync for Comm {}

/// A predefined element type.
pub(crate) type Datatype = ffi::MPI_Datatype;

/// A predefined reduction.
pub(crate) type Op = ffi::MPI_Op;

/// Plain bytes.
pub(crate) fn byte() -> Datatype {
    // SAFETY: The shim's constant is initialised before `main`.
    unsafe { ffi::RSMPI_UINT8_T }
}

/// The operand is the other one, already.
///
/// The shim does not export the constant. Each family of libraries has had one value for it since it
/// exists, and it is part of their binary interfaces.
pub(crate) fn in_place() -> *mut c_void {
    let value = if crate::environment::is_open_mpi() {
        1
    } else {
        usize::MAX
    };
    std::ptr::without_provenance_mut(value)
}

/// A count or a displacement as MPI takes it.
pub(crate) fn int(value: usize) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| too_large(value))
}

#[cold]
fn too_large(value: usize) -> Error {
    Misuse::Other(format!("{value} is more than one MPI call can take")).into()
}

impl Comm {
    /// All ranks of the job.
    pub(crate) fn world() -> Self {
        // SAFETY: The shim's constant is initialised before `main`.
        Self(unsafe { ffi::RSMPI_COMM_WORLD })
    }

    /// This rank alone.
    pub(crate) fn own() -> Self {
        // SAFETY: As above.
        Self(unsafe { ffi::RSMPI_COMM_SELF })
    }

    /// What MPI knows it by.
    pub(crate) fn handle(self) -> ffi::MPI_Comm {
        self.0
    }

    pub(crate) fn rank(self) -> Result<usize> {
        let mut rank = 0;
        // SAFETY: The communicator is valid and the place is written.
        let code = unsafe { ffi::MPI_Comm_rank(self.0, &raw mut rank) };
        check("MPI_Comm_rank", code)?;
        Ok(usize::try_from(rank).unwrap_or(0))
    }

    pub(crate) fn size(self) -> Result<usize> {
        let mut size = 0;
        // SAFETY: As above.
        let code = unsafe { ffi::MPI_Comm_size(self.0, &raw mut size) };
        check("MPI_Comm_size", code)?;
        Ok(usize::try_from(size).unwrap_or(0))
    }

    /// Makes MPI return errors of this communicator.
    pub(crate) fn return_errors(self) -> Result<()> {
        // SAFETY: Both are valid handles.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(self.0, ffi::RSMPI_ERRORS_RETURN) };
        check("MPI_Comm_set_errhandler", code)
    }

    /// A communicator of these ranks of this one, which all call it with the same tag.
    pub(crate) fn create_group(self, members: &[c_int], tag: c_int) -> Result<Self> {
        // SAFETY: The shim's constants are initialised before `main`.
        let (mut all, mut group) = unsafe { (ffi::RSMPI_GROUP_NULL, ffi::RSMPI_GROUP_NULL) };
        // SAFETY: As above.
        let mut comm = unsafe { ffi::RSMPI_COMM_NULL };
        // SAFETY: The communicator is valid and the place is written.
        let code = unsafe { ffi::MPI_Comm_group(self.0, &raw mut all) };
        check("MPI_Comm_group", code)?;
        let length = int(members.len())?;
        // SAFETY: The members are ranks of the group, each once.
        let code = unsafe { ffi::MPI_Group_incl(all, length, members.as_ptr(), &raw mut group) };
        let included = check("MPI_Group_incl", code);
        let created = included.and_then(|()| {
            // SAFETY: The group is one of this communicator's.
            let code = unsafe { ffi::MPI_Comm_create_group(self.0, group, tag, &raw mut comm) };
            let created = check("MPI_Comm_create_group", code);
            // SAFETY: It was made above and is used no more.
            let freed = unsafe { ffi::MPI_Group_free(&raw mut group) };
            created.and(check("MPI_Group_free", freed))
        });
        // SAFETY: As above.
        let freed = unsafe { ffi::MPI_Group_free(&raw mut all) };
        created.and(check("MPI_Group_free", freed))?;
        let comm = Self(comm);
        comm.return_errors()?;
        Ok(comm)
    }

    /// Gives the communicator back; nothing is enqueued on it any more.
    pub(crate) fn free(self) -> Result<()> {
        let mut comm = self.0;
        // SAFETY: It was made by `create_group`, and its owner uses it no more.
        let code = unsafe { ffi::MPI_Comm_free(&raw mut comm) };
        check("MPI_Comm_free", code)
    }

    /// Ends the job; returns only where MPI cannot do it.
    pub(crate) fn abort(self, code: c_int) {
        // SAFETY: It may be called at any time while MPI is initialised.
        let _ = unsafe { ffi::MPI_Abort(self.0, code) };
    }

    pub(crate) fn barrier(self) -> Result<()> {
        // SAFETY: The communicator is valid.
        check("MPI_Barrier", unsafe { ffi::MPI_Barrier(self.0) })
    }
}

/// # Safety
///
/// In all of these, operands are as long as counts and displacements say and nobody else uses them
/// until the call returns.
impl Comm {
    pub(crate) unsafe fn bcast(self, buffer: *mut u8, bytes: usize, root: c_int) -> Result<()> {
        let count = int(bytes)?;
        // SAFETY: By the caller.
        let code = unsafe { ffi::MPI_Bcast(buffer.cast(), count, byte(), root, self.0) };
        check("MPI_Bcast", code)
    }

    pub(crate) unsafe fn allreduce(
        self,
        send: *const c_void,
        recv: *mut u8,
        count: usize,
        (datatype, op): (Datatype, Op),
    ) -> Result<()> {
        let count = int(count)?;
        let recv = recv.cast();
        // SAFETY: By the caller.
        let code = unsafe { ffi::MPI_Allreduce(send, recv, count, datatype, op, self.0) };
        check("MPI_Allreduce", code)
    }

    pub(crate) unsafe fn reduce(
        self,
        send: *const c_void,
        recv: *mut u8,
        count: usize,
        (datatype, op): (Datatype, Op),
        root: c_int,
    ) -> Result<()> {
        let count = int(count)?;
        let recv = recv.cast();
        // SAFETY: By the caller.
        let code = unsafe { ffi::MPI_Reduce(send, recv, count, datatype, op, root, self.0) };
        check("MPI_Reduce", code)
    }

    pub(crate) unsafe fn reduce_scatter_block(
        self,
        send: *const u8,
        recv: *mut u8,
        count: usize,
        (datatype, op): (Datatype, Op),
    ) -> Result<()> {
        let count = int(count)?;
        let (send, recv) = (send.cast(), recv.cast());
        // SAFETY: By the caller.
        let code =
            unsafe { ffi::MPI_Reduce_scatter_block(send, recv, count, datatype, op, self.0) };
        check("MPI_Reduce_scatter_block", code)
    }

    pub(crate) unsafe fn reduce_scatter(
        self,
        send: *const u8,
        recv: *mut u8,
        counts: &[c_int],
        (datatype, op): (Datatype, Op),
    ) -> Result<()> {
        let (send, recv, counts) = (send.cast(), recv.cast(), counts.as_ptr());
        // SAFETY: By the caller.
        let code = unsafe { ffi::MPI_Reduce_scatter(send, recv, counts, datatype, op, self.0) };
        check("MPI_Reduce_scatter", code)
    }

    pub(crate) unsafe fn allgather(
        self,
        send: *const c_void,
        recv: *mut u8,
        bytes: usize,
    ) -> Result<()> {
        let count = int(bytes)?;
        let recv = recv.cast();
        // SAFETY: By the caller.
        let code = unsafe { ffi::MPI_Allgather(send, count, byte(), recv, count, byte(), self.0) };
        check("MPI_Allgather", code)
    }

    pub(crate) unsafe fn allgatherv(
        self,
        send: *const c_void,
        bytes: usize,
        recv: *mut u8,
        (counts, places): (&[c_int], &[c_int]),
    ) -> Result<()> {
        let count = int(bytes)?;
        let (counts, places) = (counts.as_ptr(), places.as_ptr());
        let recv = recv.cast();
        // SAFETY: By the caller.
        let code = unsafe {
            ffi::MPI_Allgatherv(send, count, byte(), recv, counts, places, byte(), self.0)
        };
        check("MPI_Allgatherv", code)
    }

    pub(crate) unsafe fn gatherv(
        self,
        send: *const c_void,
        bytes: usize,
        recv: *mut u8,
        (counts, places): (&[c_int], &[c_int]),
        root: c_int,
    ) -> Result<()> {
        let count = int(bytes)?;
        let (counts, places) = (counts.as_ptr(), places.as_ptr());
        let recv = recv.cast();
        // SAFETY: By the caller.
        let code = unsafe {
            ffi::MPI_Gatherv(
                send,
                count,
                byte(),
                recv,
                counts,
                places,
                byte(),
                root,
                self.0,
            )
        };
        check("MPI_Gatherv", code)
    }

    pub(crate) unsafe fn scatterv(
        self,
        send: *const u8,
        (counts, places): (&[c_int], &[c_int]),
        recv: *mut c_void,
        bytes: usize,
        root: c_int,
    ) -> Result<()> {
        let count = int(bytes)?;
        let (counts, places) = (counts.as_ptr(), places.as_ptr());
        let send = send.cast();
        // SAFETY: By the caller.
        let code = unsafe {
            ffi::MPI_Scatterv(
                send,
                counts,
                places,
                byte(),
                recv,
                count,
                byte(),
                root,
                self.0,
            )
        };
        check("MPI_Scatterv", code)
    }

    pub(crate) unsafe fn alltoallv(
        self,
        send: *const u8,
        sends: (&[c_int], &[c_int]),
        recv: *mut u8,
        receives: (&[c_int], &[c_int]),
    ) -> Result<()> {
        let (send, recv) = (send.cast(), recv.cast());
        // SAFETY: By the caller.
        let code = unsafe {
            ffi::MPI_Alltoallv(
                send,
                sends.0.as_ptr(),
                sends.1.as_ptr(),
                byte(),
                recv,
                receives.0.as_ptr(),
                receives.1.as_ptr(),
                byte(),
                self.0,
            )
        };
        check("MPI_Alltoallv", code)
    }
}
