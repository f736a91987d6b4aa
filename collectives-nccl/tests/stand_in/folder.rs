//! A folder in which the stand-in is the driver and the library.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// The folder, which goes with this value.
#[derive(Debug)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// Makes the folder beside what else tests write.
    pub(crate) fn prepare() -> io::Result<Self> {
        let executable = env::current_exe()?;
        let beside = executable.parent().unwrap_or(Path::new("."));
        let built = fs::canonicalize(beside.join("libnccl_stand_in.so"))?;
        let name = format!("stand-in-{}", std::process::id());
        let folder = Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        fs::create_dir_all(&folder.0)?;
        for name in ["libcuda.so.1", "libnccl.so.2"] {
            symlink(&built, folder.0.join(name))?;
        }
        Ok(folder)
    }

    /// Has a command find the stand-in, which the loader only learns when a process begins.
    pub(crate) fn serve<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command
            .env("LD_LIBRARY_PATH", &self.0)
            .env_remove("COLLECTIVES_NCCL_LIB")
            .env("NCCL_MULTI_RANK_GPU_ENABLE", "1")
            .env("NCCL_NVLS_ENABLE", "0")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}
