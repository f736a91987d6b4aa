//! MPI as this process has it: initialised once, its errors returned, ended with the process.

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use collectives_core::error::{Error, Misuse, Result, Unsupported};
use collectives_core::rank::Rank;
use mpi::ffi;

use crate::error::{BACKEND, check};
use crate::raw::Comm;
use crate::{exit, group, launched};

/// What MPI lets threads do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Threads {
    /// Any thread at any time.
    Multiple,
    /// Any thread, one at a time: all operations of the process run in one order.
    Serialized,
}

/// MPI, initialised.
#[derive(Debug)]
pub struct Mpi {
    threads: Threads,
    rank: Rank,
    world_size: usize,
    version: String,
    /// Held during every call where threads take turns.
    turn: Mutex<()>,
}

impl Mpi {
    /// MPI of this process, initialised by the first call, with as many threads as it grants.
    ///
    /// Whoever initialised MPI before keeps it: its thread level is taken as it is, errors of the
    /// world are returned from now on, and finalising it stays the business of whoever began.
    ///
    /// # How it ends
    ///
    /// MPI that this call initialised is finalised when the process ends well, after `main`. A
    /// process that ends with another code, after a panic for example, aborts the job with a message:
    /// finalising would wait for ranks that wait for this one.
    ///
    /// # Errors
    ///
    /// * [`Unsupported`] when MPI grants less than `MPI_THREAD_SERIALIZED`;
    /// * [`ErrorKind::Config`](collectives_core::error::ErrorKind::Config) when the launcher's
    ///   variables say that the world is larger than MPI does: it belongs to another MPI;
    /// * [`Misuse`] after MPI was finalised;
    /// * what MPI itself says.
    pub fn initialize() -> Result<&'static Self> {
        Self::initialize_with(Threads::Multiple)
    }

    /// As [`Mpi::initialize`], asking for no more threads than this.
    ///
    /// # Errors
    ///
    /// Those of [`Mpi::initialize`].
    pub fn initialize_with(wanted: Threads) -> Result<&'static Self> {
        static MPI: Mutex<Option<&'static Mpi>> = Mutex::new(None);
        let mut known = MPI.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mpi) = *known {
            mpi.check_alive()?;
            return Ok(mpi);
        }
        let mpi = Self::begin(wanted).map_err(|error| error.on_backend(BACKEND))?;
        Ok(known.insert(Box::leak(Box::new(mpi))))
    }

    fn begin(wanted: Threads) -> Result<Self> {
        if asked(Question::Finalized)? {
            return Err(finalized());
        }
        let begun_elsewhere = asked(Question::Initialized)?;
        let level = if begun_elsewhere {
            query_thread()?
        } else {
            init_thread(wanted)?
        };
        if !begun_elsewhere {
            exit::finalize_at_exit();
        }
        let threads = threads_of(level)?;
        Comm::world().return_errors()?;
        // Open MPI raises some errors of other communicators here.
        Comm::own().return_errors()?;
        let (rank, world_size) = (Comm::world().rank()?, Comm::world().size()?);
        launched::check(world_size, library_version())?;
        Ok(Self {
            threads,
            rank: Rank::new(rank),
            world_size,
            version: library_version().to_owned(),
            turn: Mutex::new(()),
        })
    }

    /// What threads may do.
    #[must_use]
    pub fn threads(&self) -> Threads {
        self.threads
    }

    /// This rank of the job.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Ranks of the job.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// What the library calls itself, in one line.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Has communicators that are made from now on sum and multiply 32 and 64-bit floats in the order
    /// of ranks, by [exchanging and folding](crate#what-mpi-decides) them, so that results have the
    /// bits of the other backends. Otherwise MPI chooses the order, which is faster, and above two
    /// ranks may be another for each size. All ranks say the same, or cannot connect.
    pub fn sum_in_rank_order(&self, ordered: bool) {
        group::sum_in_rank_order(ordered);
    }

    /// Lets one MPI call carry at most this many bytes, so that tests reach what otherwise takes more
    /// than 2 GiB. All ranks set the same, before they make communicators.
    #[doc(hidden)]
    pub fn limit_calls(bytes: usize) {
        group::limit_calls(bytes);
    }

    /// Ends the job with a message, on every rank.
    pub fn abort(&self, why: &str) -> ! {
        exit::abort_job(why, exit::FAILED)
    }

    /// Fails once MPI was finalised, by whoever.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if asked(Question::Finalized)? {
            return Err(finalized().on_backend(BACKEND));
        }
        Ok(())
    }

    /// This thread's turn, where threads take turns.
    pub(crate) fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        (self.threads == Threads::Serialized)
            .then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether the library is Open MPI.
pub(crate) fn is_open_mpi() -> bool {
    static OPEN: OnceLock<bool> = OnceLock::new();
    *OPEN.get_or_init(|| library_version().contains("Open MPI"))
}

/// The first line of what the library says of itself; it may be asked before MPI is initialised.
pub(crate) fn library_version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        // More than either library says, which its constant for this does not promise to the shim.
        let mut bytes: Vec<c_char> = vec![0; 16 << 10];
        let mut length = 0;
        // SAFETY: The buffer is longer than MPI's limit for this string.
        let code = unsafe { ffi::MPI_Get_library_version(bytes.as_mut_ptr(), &raw mut length) };
        let length = usize::try_from(length).unwrap_or(0);
        if code != 0 {
            return "an MPI that does not say which".to_owned();
        }
        let bytes: Vec<u8> = bytes[..length.min(bytes.len())]
            .iter()
            .map(|&byte| byte.cast_unsigned())
            .collect();
        first_line(&bytes)
    })
}

/// The first line, up to its end: Open MPI counts the zero behind it as well.
fn first_line(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let line = text.lines().next().unwrap_or_default();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[derive(Clone, Copy)]
pub(crate) enum Question {
    Initialized,
    Finalized,
}

/// Asks MPI about its own life, which is allowed at any time.
pub(crate) fn asked(question: Question) -> Result<bool> {
    let mut answer: c_int = 0;
    let code = match question {
        // SAFETY: The place is written.
        Question::Initialized => unsafe { ffi::MPI_Initialized(&raw mut answer) },
        // SAFETY: As above.
        Question::Finalized => unsafe { ffi::MPI_Finalized(&raw mut answer) },
    };
    check("MPI_Initialized", code)?;
    Ok(answer != 0)
}

fn finalized() -> Error {
    Misuse::Other("MPI was finalised while it was still needed".to_owned()).into()
}

fn init_thread(wanted: Threads) -> Result<c_int> {
    // SAFETY: The shim's constants are initialised before `main`.
    let wanted = unsafe {
        match wanted {
            Threads::Multiple => ffi::RSMPI_THREAD_MULTIPLE,
            Threads::Serialized => ffi::RSMPI_THREAD_SERIALIZED,
        }
    };
    let mut level = 0;
    // SAFETY: MPI is neither initialised nor finalised; it needs no arguments.
    let code =
        unsafe { ffi::MPI_Init_thread(ptr::null_mut(), ptr::null_mut(), wanted, &raw mut level) };
    check("MPI_Init_thread", code)?;
    Ok(level)
}

fn query_thread() -> Result<c_int> {
    let mut level = 0;
    // SAFETY: MPI is initialised.
    let code = unsafe { ffi::MPI_Query_thread(&raw mut level) };
    check("MPI_Query_thread", code)?;
    Ok(level)
}

fn threads_of(level: c_int) -> Result<Threads> {
    // SAFETY: The shim's constants are initialised before `main`.
    let (multiple, serialized) =
        unsafe { (ffi::RSMPI_THREAD_MULTIPLE, ffi::RSMPI_THREAD_SERIALIZED) };
    if level >= multiple {
        return Ok(Threads::Multiple);
    }
    if level >= serialized {
        return Ok(Threads::Serialized);
    }
    let text = "MPI lets only the thread that initialised it call it (less than \
                MPI_THREAD_SERIALIZED), and streams have threads of their own";
    Err(Error::unsupported(Unsupported::Operation(text.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_one_line_and_ends_where_it_ends() {
        assert_eq!(
            first_line(b"Open MPI v4.1.4,  May 26\0"),
            "Open MPI v4.1.4, May 26"
        );
        assert_eq!(
            first_line(b"MPICH Version:\t4.0.2\nMPICH ABI: 1\n"),
            "MPICH Version: 4.0.2"
        );
        assert_eq!(first_line(b""), "");
    }
}
