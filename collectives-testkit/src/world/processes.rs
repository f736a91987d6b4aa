//! A world whose ranks are processes, started from the test's own binary.
//!
//! Every rank holds a connection to the parent, over which cases come in and outcomes go out. A rank
//! whose connection ends leaves; one that hangs in a case ends itself, whatever its threads do, and
//! then the others are ended by the launcher.

use std::collections::hash_map::RandomState;
use std::env;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use collectives_core::env::World as Place;
use collectives_core::error::{Error, ErrorKind, Result};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Limits;
use super::rank::{self, Job};
use crate::capability::Capability;
use crate::case::{Case, Failure, Outcome};
use crate::harness::{Harness, Ranks, Setup, Terrain};
use crate::launch::channel::{self, News};
use crate::launch::{self, Launch, Report};
use crate::patience::{Patience, Pulse};
use crate::planted::Planted;
use crate::watchdog::Notes;
use crate::{claims, suites};

/// The name of the body that serves cases.
const BODY: &str = "kit-rank";
/// Where the parent listens, and how it knows its own ranks.
const SOCKET: &str = "COLLECTIVES_KIT_SOCKET";
const TOKEN: &str = "COLLECTIVES_KIT_TOKEN";
/// The setup and the limits, in words of [`Wanted`].
const WANTED: &str = "COLLECTIVES_KIT_WANTED";

/// The file that ranks note in what they do.
const NOTES: &str = "COLLECTIVES_KIT_NOTES";

/// The bug of the case that the world was started for.
const BUG: &str = "COLLECTIVES_KIT_BUG";

/// How long a world of processes may serve in all; it ends when the parent does anyway.
const LIFE: Duration = Duration::from_secs(6 * 3600);
/// What a rank gets beyond the parent's own patience before it ends itself.
const MERCY: Duration = Duration::from_secs(1);
/// How long the rest of a reply may take.
const FRAME: Duration = Duration::from_secs(30);
/// How much of what the ranks printed goes into a failure.
const LAST_LINES: usize = 30;

static HARNESS: OnceLock<Arc<dyn Harness>> = OnceLock::new();

/// Serves this rank's cases and ends the process, or returns where the process is no rank.
pub(crate) fn dispatch(harness: &Arc<dyn Harness>) {
    let _known = HARNESS.set(Arc::clone(harness));
    launch::dispatch(&[(BODY, body)]);
}

/// The bug of the case that this rank's world was started for.
pub(crate) fn planted() -> Option<Planted> {
    named(&env::var(BUG).unwrap_or_default())
}

fn named(bug: &str) -> Option<Planted> {
    Planted::ALL
        .iter()
        .copied()
        .find(|known| known.name() == bug)
}

/// The parent's hold on its ranks.
#[derive(Debug)]
pub(super) struct World {
    ranks: Vec<UnixStream>,
    notes: Option<PathBuf>,
    launched: Option<JoinHandle<Result<Report>>>,
}

impl World {
    pub(super) fn start(
        harness: &dyn Harness,
        setup: Setup,
        limits: Limits,
        bug: Option<Planted>,
    ) -> Outcome<Self> {
        let secret = || format!("{:016x}", RandomState::new().hash_one(setup.ranks));
        let (name, token) = (format!("collectives-kit-{}", secret()), secret());
        let listener = channel::listen(&name)
            .map_err(|error| Failure(format!("no socket for the ranks: {error}")))?;
        let notes = env::temp_dir().join(&name);
        // Without it the ranks' last operations are not known, and that is all.
        let noted = File::create_new(&notes).is_ok();
        let mut launch = Launch::new(BODY, setup.ranks)
            .var(NOTES, &notes)
            .deadline(LIFE)
            .var(SOCKET, name)
            .var(TOKEN, &token)
            .var(BUG, bug.map_or("", Planted::name))
            .var(WANTED, Wanted { setup, limits }.to_text());
        if harness.ranks() == Ranks::Launched {
            launch = launch.through(harness.launcher(setup.ranks));
        }
        // To the system this thread is the parent, so it stays as long as they do.
        let launched = thread::Builder::new()
            .name("kit-launch".to_owned())
            .spawn(move || launch.run())
            .map_err(|error| Failure(format!("no thread to start the ranks: {error}")))?;
        let mut world = Self {
            ranks: Vec::new(),
            notes: noted.then_some(notes),
            launched: Some(launched),
        };
        match world.meet(&listener, setup, &token) {
            Ok(()) => Ok(world),
            Err(failure) => Err(world.failed(failure)),
        }
    }

    /// Waits until every rank is there and has joined the others.
    fn meet(&mut self, listener: &UnixListener, setup: Setup, token: &str) -> Outcome {
        let limit = setup.deadline * 2;
        let begun = Instant::now();
        let mut ranks: Vec<Option<UnixStream>> = (0..setup.ranks).map(|_| None).collect();
        while ranks.iter().any(Option::is_none) {
            if let Ok((mut stream, _)) = listener.accept() {
                let _blocking = stream.set_nonblocking(false);
                let _bounded = stream.set_read_timeout(Some(limit));
                if let Ok(Some(News::Rank(rank, theirs))) = News::receive(&mut stream)
                    && theirs == token.as_bytes()
                    && let Some(place) = ranks.get_mut(rank as usize)
                {
                    *place = Some(stream);
                }
                continue;
            }
            let over = self.launched.as_ref().is_none_or(JoinHandle::is_finished);
            if over || begun.elapsed() > limit {
                return Err(Failure("the ranks did not start".to_owned()));
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.ranks = ranks.into_iter().flatten().collect();
        self.collect("start", limit)
    }

    pub(super) fn run(&mut self, case: &Case, bug: Option<Planted>, limit: Duration) -> Outcome {
        let job = format!("{}\n{}", key(case), bug.map_or("", Planted::name));
        let job = News::Result(job.into_bytes());
        let sent = self
            .ranks
            .iter_mut()
            .try_for_each(|rank| job.send(rank))
            .map_err(|error| Failure(format!("a rank is gone before the case: {error}")));
        let what = format!("{} ({})", case.id, case.title);
        sent.and_then(|()| self.collect(&what, limit))
            .map_err(|failure| self.failed(failure))
    }

    /// Every rank's reply, or what is known of those that do not reply.
    fn collect(&mut self, what: &str, limit: Duration) -> Outcome {
        let mut failures = Vec::new();
        let file = self.notes.as_ref().and_then(|path| File::open(path).ok());
        let file = file.map(Arc::new);
        let pulse = match &file {
            Some(file) => Pulse::Processes(Arc::clone(file)),
            None => Pulse::Threads(Arc::default()),
        };
        // Those that end themselves say so first.
        let mut patience = Patience::new(pulse, limit + 2 * MERCY);
        let last = |rank: usize| {
            let file = Arc::clone(file.as_ref()?);
            let rank = rank as u64;
            Notes { file, rank }.read()
        };
        let last = |rank| last(rank).unwrap_or_else(|| "not known".to_owned());
        for (index, stream) in self.ranks.iter_mut().enumerate() {
            match reply(stream, &mut patience) {
                Ok(Some(News::Result(_))) => {}
                Ok(Some(News::Error(text))) => failures.push(format!("rank {index}: {text}")),
                Ok(Some(_) | None) => {
                    let last = last(index);
                    failures.push(format!("rank {index} ended in {what}; last: {last}"));
                }
                Err(error) => {
                    let last = last(index);
                    failures.push(format!(
                        "rank {index} did not return from {what}: {error}; last: {last}"
                    ));
                }
            }
        }
        match failures.is_empty() {
            true => Ok(()),
            false => Err(Failure(failures.join("\n"))),
        }
    }

    /// Ends the world, and adds how its processes ended to a failure.
    fn failed(&mut self, Failure(text): Failure) -> Failure {
        let report = match self.end() {
            Some(Ok(report)) => report.to_string(),
            Some(Err(error)) => error.to_string(),
            None => return Failure(text),
        };
        let lines: Vec<_> = report.lines().collect();
        let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
        Failure(format!("{text}\n{}", last.join("\n")))
    }

    fn end(&mut self) -> Option<Result<Report>> {
        for rank in self.ranks.drain(..) {
            let _gone = rank.shutdown(Shutdown::Both);
        }
        self.launched.take()?.join().ok()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.end() {
            tracing::debug!(%error, "a world of the kit did not end cleanly");
        }
        if let Some(notes) = self.notes.take() {
            let _gone = fs::remove_file(notes);
        }
    }
}

/// A rank's reply, once it comes.
fn reply(stream: &mut UnixStream, patience: &mut Patience) -> io::Result<Option<News>> {
    let tick = Timespec::try_from(patience.tick()).map_err(io::Error::other)?;
    loop {
        let mut polled = [PollFd::new(&*stream, PollFlags::IN)];
        match poll(&mut polled, Some(&tick)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => break,
            Err(error) => return Err(error.into()),
        }
        if let Some(over) = patience.look() {
            return Err(io::Error::other(over.to_string()));
        }
    }
    // What has begun to come is there soon.
    stream.set_read_timeout(Some(FRAME))?;
    News::receive(stream)
}

/// What a rank is told with its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    setup: Setup,
    limits: Limits,
}

impl Wanted {
    fn to_text(self) -> String {
        format!(
            "{} {} {}",
            self.setup.terrain.name(),
            self.limits.call.as_millis(),
            self.limits.case.as_millis()
        )
    }

    fn parse(text: &str, ranks: usize) -> Option<Self> {
        let mut words = text.split(' ');
        let name = words.next()?;
        let terrain = Terrain::ALL
            .into_iter()
            .find(|terrain| terrain.name() == name)?;
        let mut time = || words.next()?.parse().ok().map(Duration::from_millis);
        let limits = Limits {
            call: time()?,
            case: time()?,
        };
        Some(Self {
            setup: Setup {
                ranks,
                terrain,
                deadline: limits.call,
            },
            limits,
        })
    }
}

fn key(case: &Case) -> String {
    format!("{}/{}/{}", case.id, case.terrain.name(), case.title)
}

fn job(bytes: &[u8]) -> Option<Job> {
    let text = String::from_utf8_lossy(bytes);
    let (wanted, bug) = text.split_once('\n')?;
    let case = suites::cases()
        .map(|(_, case)| case)
        .chain(Capability::ALL.into_iter().filter_map(claims::case))
        .find(|case| key(case) == wanted)?;
    let bug = named(bug);
    Some(Job { run: case.run, bug })
}

fn system(text: impl ToString) -> Error {
    Error::new(ErrorKind::System(text.to_string()))
}

fn body(place: &Place) -> Result<Vec<u8>> {
    let var = |name: &str| env::var(name).map_err(|error| system(format!("{name}: {error}")));
    let wanted = Wanted::parse(&var(WANTED)?, place.world_size);
    let Wanted { setup, limits } = wanted.ok_or_else(|| system("what is wanted is garbled"))?;
    let harness = HARNESS.get().ok_or_else(|| system("no harness was set"))?;
    let mut parent = channel::connect(&var(SOCKET)?).map_err(system)?;
    let hello = News::Rank(place.rank.0, var(TOKEN)?.into_bytes());
    hello.send(&mut parent).map_err(system)?;
    let bootstrap = harness.bootstrap(place, limits.call)?;
    let (end, beats) = (Arc::clone(&bootstrap), Arc::default());
    let rank = rank::start(harness, setup, limits.case, end, beats)
        .map_err(|Failure(text)| system(text))?;
    if let Ok(file) = var(NOTES).and_then(|path| {
        File::options()
            .read(true)
            .write(true)
            .open(path)
            .map_err(system)
    }) {
        let number = u64::from(place.rank.0);
        let file = Arc::new(file);
        rank.progress.write_to(Notes { file, rank: number });
    }
    let mut limit = setup.deadline * 2;
    loop {
        let mut patience = Patience::new(rank.progress.pulse(), limit + MERCY);
        let reply = loop {
            match rank.replies.recv_timeout(patience.tick()) {
                Ok(Ok(())) => break News::Result(Vec::new()),
                Ok(Err(Failure(text))) => break News::Error(text),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(system("the rank's thread is gone"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(over) = patience.look() {
                let last = rank.progress.last();
                let text = format!("did not return: {over}; last: {last}");
                let _told = News::Error(text).send(&mut parent);
                // Destructors could wait for the thread that hangs.
                std::process::abort();
            }
        };
        reply.send(&mut parent).map_err(system)?;
        if let News::Error(text) = reply {
            return Err(system(text));
        }
        let Ok(Some(News::Result(bytes))) = News::receive(&mut parent) else {
            break;
        };
        let job = job(&bytes).ok_or_else(|| system("there is no such case"))?;
        rank.progress.begin();
        rank.jobs
            .send(job)
            .map_err(|_| system("the rank's thread is gone"))?;
        limit = limits.case * 3 / 2;
    }
    drop(rank.jobs);
    // The thread shuts the communicator down, which is bounded by its deadline.
    let _ended = rank.thread.join();
    // The rank that hosts the control plane leaves last; how this ends tells nothing any more.
    let _left = bootstrap.all_gather("kit/end", &[], limits.call);
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_survives_the_environment() {
        for terrain in Terrain::ALL {
            let limits = Limits::PATIENT;
            let setup = Setup {
                ranks: 5,
                terrain,
                deadline: limits.call,
            };
            let wanted = Wanted { setup, limits };
            assert_eq!(Wanted::parse(&wanted.to_text(), 5), Some(wanted));
        }
        assert_eq!(Wanted::parse("hostile 20", 5), None);
        assert_eq!(Wanted::parse("friendly 20 30", 5), None);
    }

    #[test]
    fn every_case_has_a_key_of_its_own() {
        let mut keys: Vec<_> = suites::cases().map(|(_, case)| key(case)).collect();
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }
}
