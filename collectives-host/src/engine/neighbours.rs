//! Which ranks share a machine, and how they map each other's memory.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::process;
use std::ptr;
use std::time::Duration;

use collectives_core::addr::Addr;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::{Misuse, Result, Unsupported};
use collectives_core::rank::Rank;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::block::SharedPlace;

/// Where all ranks are.
#[derive(Debug)]
pub struct Neighbours {
    rank: Rank,
    pids: Vec<u32>,
    /// How many machines there are.
    machines: usize,
    /// Whether every rank's device makes memory that others can map.
    share: bool,
}

impl Neighbours {
    /// Asks everybody; collective.
    pub(super) fn meet(
        bootstrap: &dyn Bootstrap,
        shares: bool,
        deadline: Duration,
    ) -> Result<Self> {
        let mut mine = process::id().to_le_bytes().to_vec();
        mine.push(u8::from(shares));
        mine.extend(machine().into_bytes());
        let all = bootstrap.all_gather("engine/connect", &mine, deadline)?;
        let mut pids = Vec::with_capacity(all.len());
        let mut machines = Vec::new();
        let mut share = true;
        for (rank, bytes) in all.iter().enumerate() {
            let garbled = || Misuse::Other(format!("rank {rank} sent a garbled record"));
            let (pid, rest) = bytes.split_first_chunk::<4>().ok_or_else(garbled)?;
            let (shares, machine) = rest.split_first().ok_or_else(garbled)?;
            pids.push(u32::from_le_bytes(*pid));
            share &= *shares == 1;
            if !machines.contains(&machine) {
                machines.push(machine);
            }
        }
        Ok(Self {
            rank: bootstrap.rank(),
            machines: machines.len(),
            pids,
            share,
        })
    }

    /// Whether ranks can map each other's memory, or why not.
    ///
    /// # Errors
    ///
    /// The reason.
    pub fn check(&self) -> Result<(), Unsupported> {
        let no = |why: String| Err(Unsupported::SymmetricMemory(why));
        if self.machines > 1 {
            return no(format!(
                "the ranks are on {} machines, and memory is shared within one",
                self.machines
            ));
        }
        if !self.share {
            return no("the device of some rank makes memory that others cannot map".to_owned());
        }
        Ok(())
    }

    /// How many machines the ranks are on.
    #[must_use]
    pub fn machines(&self) -> usize {
        self.machines
    }

    /// The process of each rank, by its number on its own machine.
    #[must_use]
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Maps a file that `rank` has open, by its descriptor there.
    pub(crate) fn map(&self, rank: usize, file: i32, bytes: usize) -> io::Result<Mapping> {
        let pid = self.pids.get(rank).ok_or(io::ErrorKind::NotFound)?;
        Mapping::of(&format!("/proc/{pid}/fd/{file}"), bytes)
    }

    /// Maps every other rank's part of a window.
    pub(super) fn map_all(
        &self,
        own: Addr,
        bytes: usize,
        words: &[u64],
    ) -> io::Result<(Box<[Addr]>, Vec<Mapping>)> {
        let mut mappings = Vec::new();
        let mut peers = Vec::with_capacity(words.len());
        for (rank, &word) in words.iter().enumerate() {
            if rank == self.rank.index() {
                peers.push(own);
                continue;
            }
            let place = decode(word);
            let mapping = self.map(rank, place.file, place.offset + bytes)?;
            peers.push(mapping.start().offset(place.offset));
            mappings.push(mapping);
        }
        Ok((peers.into(), mappings))
    }
}

/// A place as one word of a control round.
pub(super) fn encode(place: SharedPlace) -> Option<u64> {
    let file = u32::try_from(place.file).ok()?;
    let offset = u32::try_from(place.offset).ok()?;
    Some(u64::from(file) | u64::from(offset) << 32)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "both halves are taken apart"
)]
fn decode(word: u64) -> SharedPlace {
    SharedPlace {
        file: (word as u32).cast_signed(),
        offset: (word >> 32) as usize,
    }
}

/// Memory of another process.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: Addr,
    bytes: usize,
}

impl Mapping {
    fn of(path: &str, bytes: usize) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() < bytes as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::new(file.as_fd(), bytes)
    }

    /// Maps a file's first bytes.
    pub(crate) fn new(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: A fresh mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                bytes,
                access,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )
        }?;
        Ok(Self {
            start: Addr::from_ptr(start),
            bytes,
        })
    }

    pub(crate) fn start(&self) -> Addr {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: The window or segment that gave out addresses in it is gone.
        if let Err(error) = unsafe { munmap(self.start.as_ptr(), self.bytes) } {
            tracing::error!(%error, "the memory of another rank could not be unmapped");
        }
    }
}

/// What ranks have in common that can reach each other's descriptors: a name, one boot, and one
/// numbering of processes.
fn machine() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let pids = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let name = rustix::system::uname();
    format!(
        "{}/{}/{}",
        name.nodename().to_string_lossy(),
        boot.trim(),
        pids.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_its_word() {
        let place = SharedPlace {
            file: 1 << 20,
            offset: 2 << 20,
        };
        assert_eq!(encode(place).map(decode), Some(place));
        let far = SharedPlace {
            file: 3,
            offset: 1 << 32,
        };
        assert_eq!(encode(far), None);
    }
}
