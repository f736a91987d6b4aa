//! Ranks that a launcher started, mpirun, srun or torchrun for example: this process is one of them.

use std::sync::{Arc, Mutex, PoisonError};

use collectives_core::bootstrap::Bootstrap;
use collectives_core::env::World;
use collectives_core::error::{Misuse, Result};
use collectives_core::rank::Rank;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::processes::{PATIENCE, join, meet, system};
use super::{Backend, Joined, Ranks};

/// How many ranks the launcher started.
///
/// # Errors
///
/// When no launcher did, saying which variables were looked for.
pub(super) fn world_size() -> Result<usize> {
    Ok(World::from_env()?.world_size)
}

/// Runs this rank's part of a job; rank 0 gets what all ranks saw.
pub(super) fn run<R: Serialize + DeserializeOwned>(
    backend: Backend,
    ranks: &Ranks,
    job: usize,
    part: impl FnOnce(Joined) -> Result<R>,
) -> Result<Option<Vec<R>>> {
    let world = World::from_env()?;
    if world.world_size != ranks.count {
        let text = format!("{} ranks were started", world.world_size);
        return Err(Misuse::Other(text).into());
    }
    let all = met(backend, &world)?;
    // Each job has a control plane of its own, as it has communicators.
    let members: Vec<_> = (0..world.world_size).map(Rank::new).collect();
    let bootstrap = all.subgroup(&format!("example/{job}"), &members)?;
    let saw = part(join(backend, ranks, &world, bootstrap)?)?;
    let saw = serde_json::to_vec(&saw).map_err(system)?;
    let seen = gather(&*all, &format!("example/{job}/saw"), &saw)?;
    // The rank that hosts the control plane leaves last; how this ends tells nothing any more.
    let _left = all.all_gather(&format!("example/{job}/end"), &[], PATIENCE);
    if world.rank != Rank(0) {
        return Ok(None);
    }
    let seen = seen.iter().map(|bytes| serde_json::from_slice(bytes));
    seen.collect::<Result<_, _>>().map(Some).map_err(system)
}

/// Bytes of a round, of which a control plane carries a mebibyte.
const PIECE: usize = 256 << 10;

/// Gives every rank the bytes of every rank, however many: what a rank saw grows with the steps it took.
fn gather(all: &dyn Bootstrap, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
    let rounds = mine.len().div_ceil(PIECE).to_le_bytes();
    let rounds = all.all_gather(&format!("{name}/rounds"), &rounds, PATIENCE)?;
    let rounds = rounds.iter().filter_map(|bytes| bytes.first_chunk());
    let most = rounds.map(|bytes| usize::from_le_bytes(*bytes)).max();
    let mut whole = vec![Vec::new(); all.world_size()];
    let mut pieces = mine.chunks(PIECE);
    for round in 0..most.unwrap_or(0) {
        let piece = pieces.next().unwrap_or_default();
        let parts = all.all_gather(&format!("{name}/{round}"), piece, PATIENCE)?;
        for (whole, part) in whole.iter_mut().zip(parts) {
            whole.extend(part);
        }
    }
    Ok(whole)
}

/// The control plane of the process, by which its ranks meet once.
fn met(backend: Backend, world: &World) -> Result<Arc<dyn Bootstrap>> {
    static MET: Mutex<Option<Arc<dyn Bootstrap>>> = Mutex::new(None);
    let mut met = MET.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(bootstrap) = &*met {
        return Ok(Arc::clone(bootstrap));
    }
    let bootstrap = meet(backend, world)?;
    Ok(Arc::clone(met.insert(bootstrap)))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use collectives_core::in_process::InProcess;

    use super::*;

    #[test]
    fn what_ranks_saw_may_be_of_any_length() {
        let lengths = [3 * PIECE + 1, 0, PIECE];
        let saw = |rank: usize| vec![u8::try_from(rank).unwrap(); lengths[rank]];
        thread::scope(|scope| {
            for end in InProcess::world(lengths.len()) {
                scope.spawn(move || {
                    let mine = saw(end.rank().index());
                    let all = gather(&end, "saw", &mine).unwrap();
                    assert_eq!(all, [saw(0), saw(1), saw(2)]);
                });
            }
        });
    }
}
