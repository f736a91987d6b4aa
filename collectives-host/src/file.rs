//! Files in memory, without a name in any file system: nothing of one outlives its last user.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::path::Arg;
use rustix::process::{Resource, getrlimit};

/// A file of `bytes` zeroes. The name shows in `/proc/self/fd` and `/proc/self/maps`.
///
/// A batch system may limit the size of files (`ulimit -f`), which counts for these too, and to grow
/// one beyond it raises SIGXFSZ, which ends the process without a word. So the limit is asked before. How
/// the process takes that signal is its program's business, and not changed here: a signal is blocked or
/// ignored for more than one call, and for child processes too.
pub(crate) fn in_memory(name: impl Arg, bytes: usize) -> io::Result<OwnedFd> {
    let limit = getrlimit(Resource::Fsize).current;
    if let Some(limit) = limit.filter(|&limit| limit < bytes as u64) {
        let text = format!(
            "a file of {bytes} bytes is more than the limit of {limit} that this process has (ulimit -f)"
        );
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let file = memfd_create(name, MemfdFlags::CLOEXEC)?;
    ftruncate(&file, bytes as u64)?;
    Ok(file)
}

/// Whether an error says that this process has not enough of something, and not that it may not:
/// descriptors, addresses, memory, or bytes of a file.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;

    let shortages = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::AGAIN,
        Errno::FBIG,
        Errno::NOSPC,
    ];
    let raw = error.raw_os_error();
    let is_one = |errno: &Errno| raw == Some(errno.raw_os_error());
    error.kind() == io::ErrorKind::FileTooLarge || shortages.iter().any(is_one)
}
