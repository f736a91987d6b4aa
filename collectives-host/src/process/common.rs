//! How ranks come to a segment that all of them map.

use std::os::fd::AsRawFd;
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::{Error, ErrorKind, Misuse, Result};
use collectives_core::rank::Rank;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::segment::Segment;
use crate::engine::Neighbours;

/// The segment that rank 0 makes and the others map, once all of them can.
pub(super) fn segment(
    bootstrap: &dyn Bootstrap,
    neighbours: &Neighbours,
    deadline: Duration,
) -> Result<Segment> {
    let ranks = bootstrap.world_size();
    let bytes = Segment::bytes(ranks);
    let system = |error: std::io::Error| {
        let text = format!("no memory that processes share: {error}");
        Error::new(ErrorKind::System(text)).caused_by(error)
    };
    let made = (bootstrap.rank() == Rank(0)).then(|| {
        let file = memfd_create("collectives-ranks", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, bytes as u64)?;
        let segment = Segment::create(&file, ranks)?;
        Ok::<_, std::io::Error>((file, segment))
    });
    let file = match &made {
        Some(Ok((file, _))) => file.as_raw_fd(),
        _ => -1,
    };
    let all = bootstrap.all_gather("process/segment", &file.to_le_bytes(), deadline)?;
    let told = all.first().and_then(|bytes| bytes.first_chunk::<4>());
    let told = told.map_or(-1, |bytes| i32::from_le_bytes(*bytes));
    let (mapped, _file) = match made {
        Some(made) => made
            .map(|(file, segment)| (Ok(segment), Some(file)))
            .unwrap_or_else(|error| (Err(system(error)), None)),
        None => {
            let mapping = neighbours.map(0, told, bytes);
            let segment = mapping.map(|mapping| Segment::at(mapping, ranks));
            (segment.map_err(system), None)
        }
    };
    // Rank 0 keeps the file open until everybody has looked.
    let mine = [u8::from(mapped.is_ok())];
    let all = bootstrap.all_gather("process/mapped", &mine, deadline)?;
    let segment = mapped?;
    match all.iter().position(|mapped| mapped != &[1]) {
        None => Ok(segment),
        Some(rank) => {
            let text = format!("rank {rank} cannot map the memory that the ranks share");
            Err(Misuse::Other(text).into())
        }
    }
}
