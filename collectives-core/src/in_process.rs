//! The control plane for ranks that are threads of one process.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::bootstrap::{Bootstrap, WARN_AFTER};
use crate::error::{Error, ErrorKind, Misuse, Result};
use crate::rank::Rank;

/// One rank's end of a control plane that lives in this process.
#[derive(Debug)]
pub struct InProcess {
    rank: Rank,
    world_size: usize,
    world: Arc<World>,
}

#[derive(Debug, Default)]
struct World {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rounds: HashMap<String, Round>,
    groups: HashMap<String, (Vec<Rank>, Arc<World>)>,
    failure: Option<(Rank, String)>,
}

#[derive(Debug)]
struct Round {
    posted: Vec<Option<Vec<u8>>>,
    /// Fixed exactly once, under the lock.
    outcome: Option<Result<()>>,
    /// Ranks that still have to pick the outcome up; the last one removes the round.
    to_leave: usize,
}

impl InProcess {
    /// The ends of a new world, one per rank, in rank order.
    #[must_use]
    pub fn world(world_size: usize) -> Vec<Self> {
        let world = Arc::new(World::default());
        (0..world_size)
            .map(|rank| Self {
                rank: Rank::new(rank),
                world_size,
                world: Arc::clone(&world),
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.world
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bootstrap for InProcess {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn all_gather(&self, round: &str, mine: &[u8], deadline: Duration) -> Result<Vec<Vec<u8>>> {
        let begun = Instant::now();
        let mut warned = false;
        let mut state = self.lock();
        let entry = state
            .rounds
            .entry(round.to_owned())
            .or_insert_with(|| Round::new(self.world_size));
        if entry.outcome.is_none() {
            entry.posted[self.rank.index()] = Some(mine.to_vec());
            if entry.absent().is_empty() {
                entry.outcome = Some(Ok(()));
                self.world.changed.notify_all();
            }
        }
        loop {
            let failure = state.failure.clone();
            let Some(entry) = state.rounds.get_mut(round) else {
                return Err(Misuse::Other(format!("round `{round}` was used twice")).into());
            };
            let waited = begun.elapsed();
            if entry.outcome.is_none() {
                entry.outcome = if let Some((rank, cause)) = failure {
                    Some(Err(Error::new(ErrorKind::PeerFailed { rank, cause })))
                } else if waited >= deadline {
                    let absent = entry.absent();
                    Some(Err(Error::new(ErrorKind::Timeout {
                        absent,
                        waited: deadline,
                    })))
                } else {
                    None
                };
                if entry.outcome.is_some() {
                    self.world.changed.notify_all();
                }
            }
            if let Some(outcome) = entry.outcome.clone() {
                let all = outcome.map(|()| entry.posted.iter().flatten().cloned().collect());
                entry.to_leave -= 1;
                if entry.to_leave == 0 {
                    state.rounds.remove(round);
                }
                return all.map_err(|error| error.on_rank(self.rank));
            }
            if waited >= WARN_AFTER && !warned {
                warned = true;
                let absent: Vec<_> = entry.absent().iter().map(|rank| rank.0).collect();
                tracing::warn!(
                    round,
                    ?absent,
                    rank = self.rank.0,
                    "waiting for absent ranks"
                );
            }
            let next = if warned {
                deadline
            } else {
                deadline.min(WARN_AFTER)
            };
            state = self
                .world
                .changed
                .wait_timeout(state, next.saturating_sub(waited))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn publish_failure(&self, cause: &str) {
        let mut state = self.lock();
        state
            .failure
            .get_or_insert_with(|| (self.rank, cause.to_owned()));
        self.world.changed.notify_all();
    }

    fn failure(&self) -> Option<(Rank, String)> {
        self.lock().failure.clone()
    }

    fn subgroup(&self, name: &str, members: &[Rank]) -> Result<Arc<dyn Bootstrap>> {
        let position = members
            .iter()
            .position(|&member| member == self.rank)
            .ok_or_else(|| Misuse::Other(format!("rank {} is not in `{name}`", self.rank)))?;
        let mut state = self.lock();
        let (known, world) = state
            .groups
            .entry(name.to_owned())
            .or_insert_with(|| (members.to_vec(), Arc::default()));
        if known != members {
            return Err(Misuse::Other(format!("`{name}` has other members elsewhere")).into());
        }
        Ok(Arc::new(Self {
            rank: Rank::new(position),
            world_size: members.len(),
            world: Arc::clone(world),
        }))
    }
}

impl Round {
    fn new(world_size: usize) -> Self {
        Self {
            posted: vec![None; world_size],
            outcome: None,
            to_leave: world_size,
        }
    }

    fn absent(&self) -> Vec<Rank> {
        let missing =
            |(rank, posted): (usize, &Option<Vec<u8>>)| posted.is_none().then(|| Rank::new(rank));
        self.posted.iter().enumerate().filter_map(missing).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn on_every_rank<R: Send>(world_size: usize, body: impl Fn(&InProcess) -> R + Sync) -> Vec<R> {
        let ends = InProcess::world(world_size);
        thread::scope(|scope| {
            let body = &body;
            let ranks: Vec<_> = ends
                .iter()
                .map(|end| scope.spawn(move || body(end)))
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn everybody_gets_everything_in_rank_order() {
        let results = on_every_rank(4, |end| {
            (0..50_u8)
                .map(|round| {
                    let mine = [round, u8::try_from(end.rank().0).unwrap()];
                    end.all_gather(&round.to_string(), &mine, Duration::from_secs(60))
                        .unwrap()
                })
                .collect::<Vec<_>>()
        });
        for rounds in results {
            for (round, all) in rounds.into_iter().enumerate() {
                let round = u8::try_from(round).unwrap();
                assert_eq!(all, [[round, 0], [round, 1], [round, 2], [round, 3]]);
            }
        }
    }

    #[test]
    fn a_rank_that_comes_too_late_gets_the_same_error() {
        let deadline = Duration::from_millis(20);
        let results = on_every_rank(3, |end| {
            if end.rank() == Rank(2) {
                thread::sleep(deadline * 5);
            }
            let first = end.all_gather("a", b"", deadline).unwrap_err();
            (first, end.all_gather("b", b"", Duration::from_secs(60)))
        });
        for (first, second) in results {
            assert_eq!(
                first.kind(),
                &ErrorKind::Timeout {
                    absent: vec![Rank(2)],
                    waited: deadline
                }
            );
            assert!(second.is_ok(), "the world works on after a timeout");
        }
    }

    #[test]
    fn a_published_failure_wakes_everybody() {
        let results = on_every_rank(3, |end| {
            if end.rank() == Rank(1) {
                end.publish_failure("on fire");
                return None;
            }
            end.all_gather("a", b"", Duration::from_secs(60)).err()
        });
        for error in results.into_iter().flatten() {
            assert!(matches!(
                error.kind(),
                ErrorKind::PeerFailed { rank: Rank(1), .. }
            ));
        }
    }

    #[test]
    fn a_subgroup_renumbers_its_members() {
        let results = on_every_rank(4, |end| {
            if end.rank() == Rank(0) {
                return Vec::new();
            }
            let members = [Rank(3), Rank(1), Rank(2)];
            let group = end.subgroup("g", &members).unwrap();
            let mine = [u8::try_from(group.rank().0).unwrap()];
            group
                .all_gather("a", &mine, Duration::from_secs(60))
                .unwrap()
        });
        assert_eq!(results[1], [[0], [1], [2]]);
    }
}
