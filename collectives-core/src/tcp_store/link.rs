//! A rank's side: one connection, shared by all its ends, and a thread that reads from it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, BufReader, ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::server::{Host, spawn};
use super::wire::message::{Key, Outcome, Reply, Request};
use super::wire::{read_frame, reply_limit};
use crate::error::{Misuse, Result};
use crate::rank::Process;

/// How long a published failure waits to hear which failure was the first.
const FIRST_FAILURE: Duration = Duration::from_secs(1);

/// The connection of one rank; dropping it takes leave.
#[derive(Debug)]
pub(super) struct Link {
    stream: Arc<TcpStream>,
    /// Held while a frame is written, so that frames of two threads do not mix.
    writing: Mutex<()>,
    /// Held while a group is opened or closed, so that the store hears of both in their order.
    opening: Mutex<()>,
    inbox: Arc<Inbox>,
    warn_after: Duration,
    patience: Duration,
    host: Option<Host>,
    process: Process,
}

#[derive(Debug, Default)]
struct Inbox {
    news: Mutex<News>,
    changed: Condvar,
    /// Whether any group has failed or the store is lost, so that asking after it takes no lock before.
    troubled: AtomicBool,
}

/// What the store has said.
#[derive(Debug, Default)]
struct News {
    waiting: HashMap<(Key, String), Slot>,
    groups: HashMap<Key, Opened>,
    lost: Option<String>,
}

#[derive(Debug, Default)]
struct Slot {
    outcome: Option<Outcome>,
    absent: Option<Vec<u32>>,
}

#[derive(Debug, Default)]
struct Opened {
    ends: usize,
    members: Vec<u32>,
    failure: Option<(u32, String)>,
}

/// Why a round has no outcome.
#[derive(Debug)]
pub(super) enum Stuck {
    /// The store cannot be reached any more.
    Lost(String),
    /// This rank waits in the round already.
    Twice,
}

impl Link {
    pub(super) fn new(
        stream: TcpStream,
        world_size: u32,
        warn_after: Duration,
        patience: Duration,
        host: Option<Host>,
    ) -> io::Result<Self> {
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(patience.max(Duration::from_millis(1))))?;
        stream.set_nodelay(true)?;
        let inbox = Arc::new(Inbox::default());
        inbox.lock().groups.insert(Key::new(), Opened::default());
        let stream = Arc::new(stream);
        let (reading, into) = (Arc::clone(&stream), Arc::clone(&inbox));
        spawn("store link", move || read(&reading, &into, world_size))?;
        Ok(Self {
            stream,
            writing: Mutex::default(),
            opening: Mutex::default(),
            inbox,
            warn_after,
            patience,
            host,
            process: Process::this(),
        })
    }

    /// Arrives in a round and waits for its outcome, which the store alone fixes.
    pub(super) fn round(
        &self,
        key: &Key,
        round: &str,
        payload: &[u8],
        deadline: Duration,
    ) -> Result<Outcome, Stuck> {
        let begun = Instant::now();
        let id = (key.clone(), round.to_owned());
        match self.inbox.lock().waiting.entry(id.clone()) {
            Entry::Occupied(_) => return Err(Stuck::Twice),
            Entry::Vacant(slot) => slot.insert(Slot::default()),
        };
        self.send(&Request::Post {
            key: key.clone(),
            round: round.to_owned(),
            payload: payload.to_vec(),
        });
        let mut warned = false;
        let mut asked: Option<Duration> = None;
        let mut news = self.inbox.lock();
        loop {
            let slot = news.waiting.entry(id.clone()).or_default();
            if let Some(outcome) = slot.outcome.take() {
                news.waiting.remove(&id);
                return Ok(outcome);
            }
            if let Some(absent) = slot.absent.take() {
                tracing::warn!(round, ?absent, "waiting for absent ranks");
            }
            if let Some(lost) = news.lost.clone() {
                news.waiting.remove(&id);
                return Err(Stuck::Lost(lost));
            }
            let waited = begun.elapsed();
            let next = match asked {
                Some(at) => at.saturating_add(self.patience),
                None if warned => deadline,
                None => deadline.min(self.warn_after),
            };
            if waited < next {
                news = self.inbox.wait(news, next - waited);
                continue;
            }
            drop(news);
            let (key, round) = id.clone();
            if asked.is_some() {
                self.sever("it does not answer");
            } else if waited >= deadline {
                asked = Some(waited);
                self.send(&Request::Abort {
                    key,
                    round,
                    waited: deadline,
                });
            } else {
                warned = true;
                self.send(&Request::Who { key, round });
            }
            news = self.inbox.lock();
        }
    }

    /// Tells the group that this rank, which has `position` in it, failed.
    pub(super) fn publish(&self, key: &Key, position: u32, cause: &str) {
        let request = Request::Publish {
            key: key.clone(),
            cause: cause.to_owned(),
        };
        self.send(&request);
        let begun = Instant::now();
        let mut news = self.inbox.lock();
        loop {
            let waited = begun.elapsed();
            let lost = news.lost.is_some();
            let Some(group) = news.groups.get_mut(key) else {
                return;
            };
            if group.failure.is_some() {
                return;
            }
            if lost || waited >= FIRST_FAILURE {
                group.failure = Some((position, cause.to_owned()));
                self.inbox.troubled.store(true, Ordering::Release);
                return;
            }
            news = self.inbox.wait(news, FIRST_FAILURE - waited);
        }
    }

    /// Whether there is any failure to ask after.
    #[inline]
    pub(super) fn is_troubled(&self) -> bool {
        self.inbox.troubled.load(Ordering::Acquire)
    }

    /// The first failure in a group that this rank has heard of.
    pub(super) fn failure(&self, key: &Key) -> Option<(u32, String)> {
        self.inbox.lock().groups.get(key)?.failure.clone()
    }

    /// Why the store cannot be reached any more.
    pub(super) fn lost(&self) -> Option<String> {
        self.inbox.lock().lost.clone()
    }

    /// Adds an end of a group.
    pub(super) fn open(&self, key: &Key, members: &[u32]) -> Result<(), Misuse> {
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let mut news = self.inbox.lock();
        let group = news.groups.entry(key.clone()).or_default();
        if group.ends > 0 && group.members != members {
            return Err(Misuse::Other(
                "the group has other members elsewhere".to_owned(),
            ));
        }
        group.ends += 1;
        if group.ends == 1 {
            group.members = members.to_vec();
            drop(news);
            let members = members.to_vec();
            self.send(&Request::Open {
                key: key.clone(),
                members,
            });
        }
        Ok(())
    }

    /// Removes an end of a group.
    pub(super) fn close(&self, key: &Key) {
        if !self.process.is_this() {
            return;
        }
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let mut news = self.inbox.lock();
        let Some(group) = news.groups.get_mut(key) else {
            return;
        };
        group.ends -= 1;
        if group.ends == 0 {
            news.groups.remove(key);
            drop(news);
            self.send(&Request::Close { key: key.clone() });
        }
    }

    #[cfg(test)]
    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    #[cfg(test)]
    pub(super) fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// Rounds waited in, and groups with an end.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> (usize, usize) {
        let news = self.inbox.lock();
        (news.waiting.len(), news.groups.len())
    }

    fn send(&self, request: &Request) {
        let frame = request.encode();
        let written = {
            let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
            (&*self.stream).write_all(&frame)
        };
        match written {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                self.sever("it does not read");
            }
            // What it said before it went is still there: the reading thread finds the end.
            Err(_) => {
                let _ = self.stream.shutdown(Shutdown::Write);
            }
        }
    }

    /// Gives the store up. The connection ends with it, so that the store gives this rank up too,
    /// and nobody takes it for one that goes on.
    fn sever(&self, why: &str) {
        self.inbox.lose(why);
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // A fork shares the connection, and has none of the store's threads.
            std::mem::forget(self.host.take());
            return;
        }
        let cause = thread::panicking().then(|| "it panicked".to_owned());
        if self.lost().is_none() {
            self.send(&Request::Leave { cause });
        }
        // The reading thread reads to the end; to close with unread bytes would take back what was
        // just said.
        let _ = self.stream.shutdown(Shutdown::Write);
        // On rank 0 the store goes on from here until the others have left too.
        drop(self.host.take());
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, news: MutexGuard<'a, News>, limit: Duration) -> MutexGuard<'a, News> {
        let woken = self.changed.wait_timeout(news, limit);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lose(&self, why: &str) {
        let lost = || format!("the store that rank 0 hosts was lost: {why}");
        self.lock().lost.get_or_insert_with(lost);
        self.troubled.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    fn deliver(&self, reply: Reply) {
        let mut news = self.lock();
        match reply {
            Reply::Outcome {
                key,
                round,
                outcome,
            } => {
                if let Some(slot) = news.waiting.get_mut(&(key, round)) {
                    slot.outcome = Some(outcome);
                }
            }
            Reply::Absent { key, round, ranks } => {
                if let Some(slot) = news.waiting.get_mut(&(key, round)) {
                    slot.absent = Some(ranks);
                }
            }
            Reply::Failed { key, rank, cause } => {
                if let Some(group) = news.groups.get_mut(&key) {
                    group.failure = Some((rank, cause));
                    self.troubled.store(true, Ordering::Release);
                }
            }
        }
        self.changed.notify_all();
    }
}

fn read(stream: &TcpStream, inbox: &Inbox, world_size: u32) {
    let limit = reply_limit(world_size as usize);
    let mut reader = BufReader::new(stream);
    let why = loop {
        match read_frame(&mut reader, limit) {
            Ok(Some(body)) => match Reply::decode(&body) {
                Ok(reply) => inbox.deliver(reply),
                Err(garbled) => break garbled.0.to_owned(),
            },
            Ok(None) => break "it closed the connection".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    inbox.lose(&why);
    let _ = stream.shutdown(Shutdown::Both);
}
