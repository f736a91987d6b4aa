//! How ranks come to a segment that all of them map.

use std::os::fd::AsRawFd;
use std::time::Duration;

use collectives_core::agreement::Record;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::outcome;
use collectives_core::rank::Rank;

use super::segment::Segment;
use crate::engine::Neighbours;
use crate::file;

/// The segment that rank 0 makes and the others map, once all of them can.
///
/// # Errors
///
/// The same on every rank: [`ErrorKind::OutOfMemory`] where a rank has not enough descriptors or
/// addresses, and otherwise what the first rank that failed says.
pub(super) fn segment(
    bootstrap: &dyn Bootstrap,
    neighbours: &Neighbours,
    deadline: Duration,
) -> Result<Segment> {
    let (rank, ranks) = (bootstrap.rank(), bootstrap.world_size());
    let bytes = Segment::bytes(ranks);
    let failed = |error: std::io::Error| match file::is_shortage(&error) {
        true => Error::new(ErrorKind::OutOfMemory { rank, bytes }).caused_by(error),
        false => {
            let text = format!("no memory that processes share: {error}");
            Error::new(ErrorKind::System(text)).caused_by(error)
        }
    };
    let made = (rank == Rank(0)).then(|| {
        let file = file::in_memory("collectives-ranks", bytes)?;
        let segment = Segment::create(&file, ranks)?;
        Ok::<_, std::io::Error>((file, segment))
    });
    let made = made.transpose().map_err(failed);
    let mut said = outcome::facts(&made);
    if let Ok(Some((file, _))) = &made {
        said.extend(u64::try_from(file.as_raw_fd()));
    }
    let records = exchange(bootstrap, "process/segment", &said, deadline)?;
    // Rank 0 keeps the file open until everybody has looked.
    let made = outcome::settle(made, &records)?;
    let (mapped, _file) = match made {
        Some((file, segment)) => (Ok(segment), Some(file)),
        None => {
            let told = records.first().and_then(|record| record.facts().last());
            let file = told.and_then(|&file| i32::try_from(file).ok());
            let mapping = neighbours.map(0, file.unwrap_or(-1), bytes);
            let segment = mapping.map(|mapping| Segment::at(mapping, ranks));
            (segment.map_err(failed), None)
        }
    };
    let said = outcome::facts(&mapped);
    let records = exchange(bootstrap, "process/mapped", &said, deadline)?;
    outcome::settle(mapped, &records)
}

/// What every rank says.
fn exchange(
    bootstrap: &dyn Bootstrap,
    name: &str,
    mine: &[u64],
    deadline: Duration,
) -> Result<Vec<Record>> {
    let record = mine.iter().copied().fold(Record::new(), Record::fact);
    let all = bootstrap.all_gather(name, &record.encode(), deadline)?;
    all.iter().map(|bytes| Record::decode(bytes)).collect()
}
