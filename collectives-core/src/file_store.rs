//! The control plane for ranks that have a file in common, on a shared file system or one machine.
//!
//! Rank 0 writes into the file where it hosts the [store](crate::tcp_store), and the others read it
//! there. The file is put in place whole, by a rename, and taken away when all ranks have come.
//!
//! A file of an earlier job that was killed does no harm: rank 0 replaces it, and ranks that read
//! the old one find nobody there, or somebody who refuses them, and look again until their deadline.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::bootstrap::{Bootstrap, DEFAULT_DEADLINE};
use crate::error::{Error, ErrorKind, Misuse, Result};
use crate::rank::Rank;
use crate::rendezvous::{Card, Host};
use crate::tcp_store::TcpStore;

/// How often the file is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// How long one address is tried before the next one is, and then the file is read again.
const TURN: Duration = Duration::from_secs(2);

/// A card is shorter than this; whatever is longer is no card.
const MAX_CARD: u64 = 4 << 10;

/// A place in a world, to be taken with [`FileJoin::join`].
#[derive(Clone, Debug)]
#[must_use]
pub struct FileJoin {
    path: PathBuf,
    rank: Rank,
    world_size: usize,
    deadline: Duration,
}

impl FileJoin {
    /// This rank of a world of this size, which meets at a file that need not exist.
    pub fn new(path: impl Into<PathBuf>, rank: Rank, world_size: usize) -> Self {
        Self {
            path: path.into(),
            rank,
            world_size,
            deadline: DEFAULT_DEADLINE,
        }
    }

    /// How long to wait for the other ranks, 300 s unless said.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Takes the place, and waits for all other ranks.
    ///
    /// # Errors
    ///
    /// * [`Misuse::RankOutOfRange`];
    /// * [`ErrorKind::System`] when rank 0 cannot write the file or host the store;
    /// * [`ErrorKind::Timeout`] naming the ranks that did not come; its source says what was found
    ///   in the file.
    pub fn join(self) -> Result<Arc<dyn Bootstrap>> {
        let rank = self.rank;
        self.meet()
            .map_err(|error| error.during("join").on_rank(rank))
    }

    fn meet(self) -> Result<Arc<dyn Bootstrap>> {
        if self.rank.index() >= self.world_size {
            return Err(Misuse::RankOutOfRange {
                rank: self.rank,
                world_size: self.world_size,
            }
            .into());
        }
        let begun = Instant::now();
        let left = || self.deadline.saturating_sub(begun.elapsed());
        if self.rank != Rank(0) {
            let store = self.find(begun)?;
            store.all_gather("file/met", &[], left())?;
            return Ok(Arc::new(store));
        }
        let host = Host::listen()?;
        let written = Written::put(&self.path, host.card()).map_err(|error| {
            let path = self.path.display();
            let text = format!("the rendezvous file {path} cannot be written: {error}");
            Error::new(ErrorKind::System(text)).caused_by(error)
        })?;
        // It waits for no other rank, so that a process which was slow until here still names those that
        // did not come.
        let store = host.join(self.world_size, left().max(TURN))?;
        let met = store.all_gather("file/met", &[], left());
        drop(written);
        met?;
        Ok(Arc::new(store))
    }

    /// Looks into the file until what it says leads to the store.
    fn find(&self, begun: Instant) -> Result<TcpStore> {
        let mut found = "it is not there".to_owned();
        loop {
            let left = self.deadline.saturating_sub(begun.elapsed());
            if left.is_zero() {
                let text = format!("the rendezvous file {}: {found}", self.path.display());
                let kind = ErrorKind::Timeout {
                    absent: vec![Rank(0)],
                    waited: self.deadline,
                };
                return Err(Error::new(kind).caused_by(std::io::Error::other(text)));
            }
            match read(&self.path) {
                Ok(card) => {
                    let place = card.place(self.rank, self.world_size, left);
                    match place.once(TURN).join() {
                        Ok(store) => return Ok(store),
                        Err(error) => found = told(&error),
                    }
                }
                Err(error) => found = error.to_string(),
            }
            thread::sleep(LOOK.min(left));
        }
    }
}

/// An error and what caused it. Of a timeout only the cause is news.
fn told(error: &Error) -> String {
    let source = std::error::Error::source(error).map(ToString::to_string);
    match (error.kind(), source) {
        (ErrorKind::Timeout { .. }, Some(source)) => source,
        _ => error.to_string(),
    }
}

fn read(path: &Path) -> Result<Card> {
    let failed = |error: std::io::Error| Error::from(Misuse::Other(error.to_string()));
    if fs::metadata(path).map_err(failed)?.len() > MAX_CARD {
        return Err(Misuse::Other("it is too long for a card".to_owned()).into());
    }
    Card::parse(&fs::read_to_string(path).map_err(failed)?)
}

/// The file, as long as it is needed.
struct Written {
    path: PathBuf,
    text: String,
}

impl Written {
    fn put(path: &Path, card: &Card) -> std::io::Result<Self> {
        let text = card.to_text();
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.new", std::process::id()));
        let new = path.with_file_name(name);
        let put = || {
            let mut file = fs::File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, path)
        };
        put().inspect_err(|_| {
            let _gone = fs::remove_file(&new);
        })?;
        Ok(Self {
            path: path.to_owned(),
            text,
        })
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // Another job may have replaced it.
        if fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            let _gone = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = format!("collectives-file-{}-{name}", std::process::id());
            let folder = std::env::temp_dir().join(folder);
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn file(&self) -> PathBuf {
            self.0.join("rendezvous")
        }

        fn is_empty(&self) -> bool {
            fs::read_dir(&self.0).unwrap().next().is_none()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _gone = fs::remove_dir_all(&self.0);
        }
    }

    fn meet(path: &Path, ranks: usize) -> Vec<Vec<Vec<u8>>> {
        let deadline = Duration::from_secs(20);
        thread::scope(|scope| {
            let rank = |rank: usize| {
                scope.spawn(move || {
                    let join = FileJoin::new(path, Rank::new(rank), ranks).deadline(deadline);
                    let end = join.join().unwrap();
                    let mine = [u8::try_from(rank).unwrap()];
                    let all = end.all_gather("round", &mine, deadline).unwrap();
                    // The rank that hosts the store leaves last.
                    end.all_gather("end", &[], deadline).unwrap();
                    all
                })
            };
            let ranks: Vec<_> = (0..ranks).rev().map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_meet_at_a_file_and_leave_none() {
        let folder = Folder::new("meet");
        for all in meet(&folder.file(), 3) {
            assert_eq!(all, [[0], [1], [2]]);
        }
        assert!(folder.is_empty());
    }

    #[test]
    fn what_an_earlier_job_left_is_replaced() {
        let folder = Folder::new("stale");
        let stale = Host::listen().unwrap().card().to_text();
        for left in [stale.as_str(), "", "something else", &stale[..20]] {
            fs::write(folder.file(), left).unwrap();
            assert_eq!(meet(&folder.file(), 2).len(), 2, "{left:?}");
            assert!(folder.is_empty());
        }
    }

    #[test]
    fn a_rank_0_that_never_comes_is_absent_and_the_file_is_told() {
        let folder = Folder::new("absent");
        let join = FileJoin::new(folder.file(), Rank(1), 2).deadline(Duration::from_millis(60));
        let error = join.join().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Timeout { absent, .. } if *absent == [Rank(0)]));
        let source = std::error::Error::source(&error).map(ToString::to_string);
        assert!(source.is_some_and(|text| text.contains("rendezvous")));
    }

    #[test]
    fn ranks_that_never_come_are_named_and_nothing_is_left() {
        let folder = Folder::new("alone");
        let join = FileJoin::new(folder.file(), Rank(0), 3).deadline(Duration::from_millis(100));
        let error = join.join().unwrap_err();
        let absent = vec![Rank(1), Rank(2)];
        assert!(
            matches!(error.kind(), ErrorKind::Timeout { absent: who, .. } if *who == absent),
            "{error}"
        );
        assert!(folder.is_empty());
    }

    #[test]
    fn a_deadline_that_passes_before_the_store_serves_names_the_others_too() {
        let folder = Folder::new("late");
        let join = FileJoin::new(folder.file(), Rank(0), 2).deadline(Duration::ZERO);
        let error = join.join().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Timeout { absent, .. } if *absent == [Rank(1)]),
            "{error}"
        );
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error_at_once() {
        let join = FileJoin::new("/nowhere/at/all", Rank(0), 2);
        let text = join.join().unwrap_err().to_string();
        assert!(text.contains("/nowhere/at/all"), "{text}");
    }
}
