//! Taking a place in a world: where the store is, who we are, and how long we try.

use std::fmt::Display;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::TcpStore;
use super::address::{bind, resolve};
use super::dial::{Declined, dial};
use super::limited::deadline_in;
use super::link::Link;
use super::server::Host;
use super::wire::hello::{Hello, MAX_TOKEN, Refusal, VERSION};
use crate::bootstrap::{DEFAULT_DEADLINE, WARN_AFTER};
use crate::error::{Error, ErrorKind, Misuse, Result, Unsupported};
use crate::rank::Rank;

/// How long a store of another session is taken for one that is just ending.
const OTHER_SESSION: Duration = Duration::from_secs(5);

/// How long an address that does not answer keeps the others from their turn, at first.
const FIRST_TURN: Duration = Duration::from_millis(500);

/// A place in a world, to be taken with [`Join::join`].
#[derive(Debug)]
#[must_use]
pub struct Join {
    rank: Rank,
    world_size: usize,
    /// Where rank 0 may be found: names and addresses, best first.
    hosts: Vec<String>,
    port: u16,
    token: String,
    deadline: Duration,
    /// Whether every host is tried once, and no longer than this.
    once: Option<Duration>,
    listener: Option<TcpListener>,
    warn_after: Duration,
    patience: Duration,
    introduction: Duration,
}

impl Join {
    /// This rank of a world of this size, whose rank 0 hosts the store at `host:port`.
    pub fn new(rank: Rank, world_size: usize, host: impl Into<String>, port: u16) -> Self {
        Self {
            rank,
            world_size,
            hosts: vec![host.into()],
            port,
            token: String::new(),
            deadline: DEFAULT_DEADLINE,
            once: None,
            listener: None,
            warn_after: WARN_AFTER,
            patience: Duration::from_secs(30),
            introduction: Duration::from_secs(5),
        }
    }

    /// Other names and addresses of the same rank 0, in place of the one.
    pub(crate) fn hosts(mut self, hosts: impl IntoIterator<Item = String>) -> Self {
        self.hosts = hosts.into_iter().collect();
        self
    }

    /// Tries every host once, each for so long, in place of trying again until the deadline.
    pub(crate) fn once(mut self, turn: Duration) -> Self {
        self.once = Some(turn);
        self
    }

    /// What all ranks of one session have in common and those of another have not, so that two jobs
    /// on one port are not mixed up. It travels in the clear: it is no secret.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = token.into();
        self
    }

    /// How long to try to reach the store, 300 s unless said. Rank 0 may start last.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// On rank 0, a listener that is bound already, in place of binding `host:port`; the port that
    /// others connect to is then never free in between. Other ranks drop it.
    pub fn listener(mut self, listener: TcpListener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// The time after which a round warns about absent ranks, 10 s unless said.
    pub fn warn_after(mut self, after: Duration) -> Self {
        self.warn_after = after;
        self
    }

    /// How long the store may take to answer once a deadline has passed, 30 s unless said.
    ///
    /// A store that does not answer in this time is given up, because rank 0 hangs or its machine
    /// has gone without a word. The connection ends with it, so that to the others this rank has
    /// failed.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// On rank 0, how long a connection may take to say who it is, 5 s unless said.
    pub fn introduction(mut self, limit: Duration) -> Self {
        self.introduction = limit;
        self
    }

    /// Takes the place. It waits for the store alone, not for the other ranks.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Misuse`] for a rank outside the world, a world without ranks, and a token of
    ///   more than 256 bytes;
    /// * [`ErrorKind::System`] on rank 0, when the port is still in use after five seconds or
    ///   cannot be bound at all, and where a process has no descriptor left for a connection;
    /// * [`ErrorKind::Timeout`] naming rank 0, when no store was reached; its source says what
    ///   happened last;
    /// * [`ErrorKind::Config`] when the store belongs to another session or to a world of another
    ///   size, or this rank has connected before;
    /// * [`ErrorKind::Unsupported`] when the store speaks another version.
    pub fn join(self) -> Result<TcpStore> {
        let rank = self.rank;
        self.connect()
            .map_err(|error| error.during("join").on_rank(rank))
    }

    fn connect(mut self) -> Result<TcpStore> {
        let until = deadline_in(self.deadline);
        let world_size = self.check()?;
        let host = match self.rank {
            Rank(0) => Some(self.start(world_size, until)?),
            _ => None,
        };
        let hello = Hello {
            rank: self.rank.0,
            world_size,
            token: self.token.clone().into_bytes(),
        };
        let here = host.as_ref().map(Host::addresses);
        let stream = self.reach(here, &hello, until)?;
        let link = Link::new(stream, world_size, self.warn_after, self.patience, host);
        let link = link.map_err(|error| system("the connection cannot be served", error))?;
        Ok(TcpStore::world(link, self.rank, world_size))
    }

    fn check(&self) -> Result<u32> {
        if self.token.len() > MAX_TOKEN {
            let text = format!("the session's token is longer than {MAX_TOKEN} bytes");
            return Err(Misuse::Other(text).into());
        }
        match u32::try_from(self.world_size) {
            Ok(world_size) if self.rank.0 < world_size => Ok(world_size),
            _ => Err(self.out_of_range().into()),
        }
    }

    fn out_of_range(&self) -> Misuse {
        Misuse::RankOutOfRange {
            rank: self.rank,
            world_size: self.world_size,
        }
    }

    fn start(&mut self, world_size: u32, until: Instant) -> Result<Host> {
        let listener = match self.listener.take() {
            Some(listener) => listener,
            None => {
                let host = self.hosts.first().map_or("", String::as_str);
                bind(host, self.port, until).map_err(|error| {
                    let at = format!("the store cannot listen on {host}:{}", self.port);
                    system(&at, error)
                })?
            }
        };
        let token = self.token.clone().into_bytes();
        Host::start(listener, world_size, token, self.introduction)
            .map_err(|error| system("the store cannot start", error))
    }

    /// Connects, again and again until the deadline.
    ///
    /// What accepts a connection and says nothing may be rank 0 before it serves, and is waited for. It
    /// may be a stranger as well, so where there are other addresses they get their turn.
    fn reach(
        &self,
        here: Option<&[SocketAddr]>,
        hello: &Hello,
        until: Instant,
    ) -> Result<TcpStream> {
        let begun = Instant::now();
        let mut turn = self.once.unwrap_or(FIRST_TURN);
        let mut pause = Duration::from_millis(5);
        loop {
            let mut pass = Pass::default();
            let addresses = match here {
                Some(own) => own.to_vec(),
                None => self.look_up(&mut pass),
            };
            let alone = here.is_some() || addresses.len() == 1;
            for address in addresses {
                let limit = match self.once {
                    None if alone => until,
                    _ => until.min(Instant::now() + turn),
                };
                match dial(address, hello, limit) {
                    Ok(stream) => return Ok(stream),
                    Err(Declined::Unable(error)) => {
                        return Err(system("this process cannot connect to the store", error));
                    }
                    Err(Declined::Absent(why)) => pass.note(address, why),
                    Err(Declined::Silent(why)) => {
                        pass.silent = true;
                        pass.note(address, why);
                    }
                    Err(Declined::Refused(refusal)) => {
                        let error = self.refused(refusal, address);
                        let passes = match refusal {
                            Refusal::Busy => true,
                            Refusal::Token => begun.elapsed() < OTHER_SESSION,
                            _ => false,
                        };
                        if !passes || self.once.is_some() {
                            return Err(error);
                        }
                        pass.refusal = Some(error);
                    }
                }
            }
            if pass.silent {
                turn *= 2;
            }
            let left = until.saturating_duration_since(Instant::now());
            thread::sleep(pause.min(left));
            if left <= pause || self.once.is_some() {
                return Err(pass.refusal.unwrap_or_else(|| self.unreached(&pass.why)));
            }
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    /// The addresses of all hosts.
    fn look_up(&self, pass: &mut Pass) -> Vec<SocketAddr> {
        let mut addresses = Vec::new();
        for host in &self.hosts {
            match resolve(host, self.port) {
                Ok(found) if found.is_empty() => pass.note(host, "the name has no address"),
                // A system may list an address once for each use that it has.
                Ok(found) => found.into_iter().for_each(|address| {
                    if !addresses.contains(&address) {
                        addresses.push(address);
                    }
                }),
                Err(error) => pass.note(host, error),
            }
        }
        addresses
    }

    fn unreached(&self, why: &[String]) -> Error {
        let absent = vec![Rank(0)];
        let waited = self.deadline;
        let text = format!(
            "rank 0's store was not reached at {}, port {}: {}",
            self.hosts.join(", "),
            self.port,
            why.join("; ")
        );
        Error::new(ErrorKind::Timeout { absent, waited }).caused_by(text)
    }

    fn refused(&self, refusal: Refusal, address: SocketAddr) -> Error {
        let (rank, size) = (self.rank, self.world_size);
        match refusal {
            Refusal::Version(theirs) => Error::unsupported(Unsupported::Version(format!(
                "the store at {address} speaks version {theirs} of the protocol, we speak {VERSION}"
            ))),
            Refusal::WorldSize(theirs) => Error::config(format!(
                "rank {rank} expects a world of {size} ranks, the store at {address} one of {theirs}"
            )),
            Refusal::RankOutOfRange => self.out_of_range().into(),
            Refusal::Duplicate => Error::config(format!(
                "the store at {address} has a rank {rank} already, or had one"
            )),
            Refusal::Token => Error::config(format!(
                "the store at {address} belongs to another session: the tokens differ"
            )),
            Refusal::Busy | Refusal::Malformed => Error::new(ErrorKind::System(format!(
                "the store at {address} refused a greeting"
            ))),
        }
    }
}

/// What came of trying each address once.
#[derive(Debug, Default)]
struct Pass {
    why: Vec<String>,
    refusal: Option<Error>,
    /// Whether an address took the whole of its turn.
    silent: bool,
}

impl Pass {
    fn note(&mut self, place: impl Display, why: impl Display) {
        self.why.push(format!("{place}: {why}"));
    }
}

fn system(
    what: &str,
    error: impl Display + Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::new(ErrorKind::System(format!("{what}: {error}"))).caused_by(error)
}
