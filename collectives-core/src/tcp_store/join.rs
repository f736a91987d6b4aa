//! Taking a place in a world: where the store is, who we are, and how long we try.

use std::fmt::Display;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::TcpStore;
use super::address::{bind, resolve};
use super::limited::{Limited, deadline_in};
use super::link::Link;
use super::reception::READY;
use super::server::Host;
use super::wire::hello::{self, Answer, Hello, MAX_TOKEN, Refusal, Unread, VERSION};
use crate::bootstrap::{DEFAULT_DEADLINE, WARN_AFTER};
use crate::error::{Error, ErrorKind, Misuse, Result, Unsupported};
use crate::rank::Rank;

/// How long a store of another session is taken for one that is just ending.
const OTHER_SESSION: Duration = Duration::from_secs(5);

/// A place in a world, to be taken with [`Join::join`].
#[derive(Debug)]
#[must_use]
pub struct Join {
    rank: Rank,
    world_size: usize,
    host: String,
    port: u16,
    token: String,
    deadline: Duration,
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
            host: host.into(),
            port,
            token: String::new(),
            deadline: DEFAULT_DEADLINE,
            listener: None,
            warn_after: WARN_AFTER,
            patience: Duration::from_secs(30),
            introduction: Duration::from_secs(5),
        }
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
    ///   cannot be bound at all;
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
        let here = host.as_ref().map(Host::address);
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
            None => bind(&self.host, self.port, until).map_err(|error| {
                let at = format!("the store cannot listen on {}:{}", self.host, self.port);
                system(&at, error)
            })?,
        };
        let token = self.token.clone().into_bytes();
        Host::start(listener, world_size, token, self.introduction)
            .map_err(|error| system("the store cannot start", error))
    }

    /// Connects, again and again until the deadline.
    fn reach(&self, here: Option<SocketAddr>, hello: &Hello, until: Instant) -> Result<TcpStream> {
        let begun = Instant::now();
        let mut pause = Duration::from_millis(5);
        loop {
            let addresses = match here {
                Some(address) => Ok(vec![address]),
                None => resolve(&self.host, self.port),
            };
            let mut last = match &addresses {
                Ok(_) => self.unreached("the name has no address"),
                Err(error) => self.unreached(error),
            };
            for address in addresses.unwrap_or_default() {
                last = match dial(address, hello, until) {
                    Ok(stream) => return Ok(stream),
                    Err(Declined::Silent(error)) => self.unreached(format!("{address}: {error}")),
                    Err(Declined::Refused(refusal)) => {
                        let error = self.refused(refusal, address);
                        match refusal {
                            Refusal::Busy => error,
                            Refusal::Token if begun.elapsed() < OTHER_SESSION => error,
                            _ => return Err(error),
                        }
                    }
                };
            }
            let left = until.saturating_duration_since(Instant::now());
            thread::sleep(pause.min(left));
            if left <= pause {
                return Err(last);
            }
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    fn unreached(&self, why: impl Display) -> Error {
        let absent = vec![Rank(0)];
        let waited = self.deadline;
        let text = format!("{}:{} is no store yet: {why}", self.host, self.port);
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

/// Why a connection came to nothing.
enum Declined {
    Refused(Refusal),
    /// Nobody is there, or nobody who speaks the protocol.
    Silent(std::io::Error),
}

impl<E: Into<std::io::Error>> From<E> for Declined {
    fn from(error: E) -> Self {
        Self::Silent(error.into())
    }
}

fn dial(address: SocketAddr, hello: &Hello, until: Instant) -> Result<TcpStream, Declined> {
    let left = until.saturating_duration_since(Instant::now());
    let one_try = left.clamp(Duration::from_millis(1), Duration::from_secs(5));
    let mut stream = TcpStream::connect_timeout(&address, one_try)?;
    stream.set_write_timeout(Some(one_try))?;
    stream.write_all(&hello.encode())?;
    // A port may be open long before anybody serves it, so this waits as long as there is time.
    let answer = match hello::read(&mut Limited::new(&stream, until)) {
        Ok(body) => Answer::decode(&body)?,
        Err(Unread::Version(theirs)) => Answer::Refused(Refusal::Version(theirs)),
        Err(Unread::Io(error)) => return Err(error.into()),
    };
    match answer {
        Answer::Refused(refusal) => Err(Declined::Refused(refusal)),
        Answer::Welcome => {
            stream.write_all(&[READY])?;
            Ok(stream)
        }
    }
}

fn system(
    what: &str,
    error: impl Display + Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::new(ErrorKind::System(format!("{what}: {error}"))).caused_by(error)
}
