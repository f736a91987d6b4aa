//! Which ranks share a machine, and how they map each other's memory.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::process;
use std::ptr;
use std::time::Duration;

use collectives_core::addr::Addr;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::{Error, ErrorKind, Misuse, Result, Unsupported};
use collectives_core::rank::Rank;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::block::SharedPiece;
use crate::file;

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
    /// Asks everybody; collective. A rank that cannot say where it is fails all alike.
    pub(super) fn meet(
        bootstrap: &dyn Bootstrap,
        shares: bool,
        deadline: Duration,
    ) -> Result<Self> {
        let mut mine = process::id().to_le_bytes().to_vec();
        match machine() {
            Ok(machine) => {
                mine.push(u8::from(shares));
                mine.extend(machine.into_bytes());
            }
            Err(error) => {
                mine.push(LOST);
                mine.extend(error.to_string().into_bytes());
            }
        }
        let all = bootstrap.all_gather("engine/connect", &mine, deadline)?;
        let mut pids = Vec::with_capacity(all.len());
        let mut machines = Vec::new();
        let mut share = true;
        for (rank, bytes) in all.iter().enumerate() {
            let garbled = || Misuse::Other(format!("rank {rank} sent a garbled record"));
            let (pid, rest) = bytes.split_first_chunk::<4>().ok_or_else(garbled)?;
            let (shares, machine) = rest.split_first().ok_or_else(garbled)?;
            if *shares == LOST {
                let why = String::from_utf8_lossy(machine);
                let cause = format!("it cannot say which machine it is on: {why}");
                let rank = Rank::new(rank);
                return Err(Error::new(ErrorKind::PeerFailed { rank, cause }));
            }
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
        Mapping::new(open(*pid, file, bytes)?, bytes)
    }

    /// Maps every other rank's part of a window.
    pub(super) fn map_all(
        &self,
        own: Addr,
        bytes: usize,
        places: &[Vec<u8>],
    ) -> io::Result<(Box<[Addr]>, Vec<Mapping>)> {
        let mut mappings = Vec::new();
        let mut peers = Vec::with_capacity(places.len());
        for (rank, place) in places.iter().enumerate() {
            if rank == self.rank.index() {
                peers.push(own);
                continue;
            }
            let pid = self.pids.get(rank).ok_or(io::ErrorKind::NotFound)?;
            let pieces = decode(place).ok_or(io::ErrorKind::InvalidData)?;
            let mapping = Mapping::of_pieces(*pid, &pieces, bytes)?;
            peers.push(mapping.start());
            mappings.push(mapping);
        }
        Ok((peers.into(), mappings))
    }
}

/// Said in place of whether it shares by a rank that does not know where it is.
const LOST: u8 = 2;

/// Bytes of a piece on the wire.
const PIECE: usize = 20;

/// The pieces of a block as bytes of a control round.
pub(super) fn encode(pieces: &[SharedPiece]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(pieces.len() * PIECE);
    for piece in pieces {
        bytes.extend(piece.file.to_le_bytes());
        bytes.extend((piece.offset as u64).to_le_bytes());
        bytes.extend((piece.bytes as u64).to_le_bytes());
    }
    bytes
}

fn decode(place: &[u8]) -> Option<Vec<SharedPiece>> {
    let word = |bytes: &[u8]| usize::try_from(u64::from_le_bytes(*bytes.first_chunk()?)).ok();
    let piece = |bytes: &[u8]| {
        Some(SharedPiece {
            file: i32::from_le_bytes(*bytes.first_chunk()?),
            offset: word(&bytes[4..])?,
            bytes: word(&bytes[12..])?,
        })
    };
    let is_whole = !place.is_empty() && place.len().is_multiple_of(PIECE);
    let pieces = is_whole.then(|| place.chunks_exact(PIECE).map(piece));
    pieces?.collect()
}

/// Memory of another process.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: Addr,
    bytes: usize,
}

impl Mapping {
    /// Maps what a process has in these pieces, one after another, `bytes` in all.
    fn of_pieces(pid: u32, pieces: &[SharedPiece], bytes: usize) -> io::Result<Self> {
        let all = pieces
            .iter()
            .try_fold(0_usize, |sum, piece| sum.checked_add(piece.bytes));
        if all != Some(bytes) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: A fresh mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags) }?;
        let mapping = Self {
            start: Addr::from_ptr(start),
            bytes,
        };
        let mut at = mapping.start;
        for piece in pieces {
            let end = piece.offset.checked_add(piece.bytes);
            let file = open(pid, piece.file, end.ok_or(io::ErrorKind::InvalidData)?)?;
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            let offset = piece.offset as u64;
            // SAFETY: The range is part of what was just reserved, which nobody uses: pieces add up
            // to it.
            unsafe { mmap(at.as_ptr(), piece.bytes, access, flags, &file, offset) }?;
            at = at.offset(piece.bytes);
        }
        Ok(mapping)
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

/// A file that another process has open, of at least so many bytes.
fn open(pid: u32, file: i32, bytes: usize) -> io::Result<File> {
    let path = format!("/proc/{pid}/fd/{file}");
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    if file.metadata()?.len() < bytes as u64 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(file)
}

/// What ranks have in common that can reach each other's descriptors: a name, one boot, and one
/// numbering of processes.
///
/// # Errors
///
/// Where one of them cannot be read for want of descriptors: to leave it out, as where no rank has it,
/// would make another machine of this one.
fn machine() -> io::Result<String> {
    let boot = match fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Err(error) if file::is_shortage(&error) => return Err(error),
        boot => boot.unwrap_or_default(),
    };
    let pids = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let name = rustix::system::uname();
    Ok(format!(
        "{}/{}/{}",
        name.nodename().to_string_lossy(),
        boot.trim(),
        pids.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Chunk;

    fn piece(file: i32, offset: usize, bytes: usize) -> SharedPiece {
        SharedPiece {
            file,
            offset,
            bytes,
        }
    }

    #[test]
    fn pieces_survive_the_wire() {
        let pieces = [piece(1 << 20, 2 << 40, 7), piece(3, 0, usize::MAX)];
        assert_eq!(decode(&encode(&pieces)).unwrap(), pieces);
        assert_eq!(decode(&[]), None);
        assert_eq!(decode(&encode(&pieces)[1..]), None);
    }

    #[test]
    fn pieces_are_mapped_one_after_another_and_must_add_up() {
        let chunks = [1, 2].map(|pages| Chunk::new("collectives-test", pages * 4096).unwrap());
        let pieces = chunks.each_ref().map(Chunk::piece);
        let map = |pieces: &[SharedPiece], bytes| Mapping::of_pieces(process::id(), pieces, bytes);
        let [one, other] = [(); 2].map(|()| map(&pieces, 3 * 4096).unwrap());
        for (value, place) in (1..).zip([0, 4095, 4096, 3 * 4096 - 1]) {
            // SAFETY: Both mappings have that byte, and only this test uses it.
            unsafe { one.start().offset(place).as_ptr::<u8>().write(value) };
            // SAFETY: As above.
            let found = unsafe { other.start().offset(place).as_ptr::<u8>().read() };
            assert_eq!(found, value);
        }
        assert!(map(&pieces, 2 * 4096).is_err() && map(&pieces[..1], 3 * 4096).is_err());
        // Longer than the file, and no file at all.
        assert!(map(&[piece(pieces[0].file, 0, 8192)], 8192).is_err());
        assert!(map(&[piece(-1, 0, 4096)], 4096).is_err());
    }
}
