//! The parent's side: starts the ranks, watches them, and ends them by their own handles only.

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::rank::Rank;

use super::channel::{self, News};
use super::output::{Output, Stream};
use super::report::{Exit, RankReport, Report};
use super::{Launch, foreign, variables};

/// What a rank gets to end itself after its deadline, before the parent does it.
const MERCY: Duration = Duration::from_millis(500);
/// How long the last words of a rank that has ended are waited for. They end with the rank, unless
/// it has handed its output to a process of its own.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How often the parent looks.
const LOOK: Duration = Duration::from_millis(3);

pub(super) fn run(launch: &Launch) -> Result<Report> {
    start(launch)
        .map(|world| world.supervise(launch))
        .map_err(|error| {
            let text = format!("the ranks of `{}` cannot be started: {error}", launch.body);
            Error::new(ErrorKind::System(text)).caused_by(error)
        })
}

/// The ranks, all of which are children of this thread.
struct World {
    ranks: Vec<Process>,
    socket: UnixListener,
    output: Output,
    readers: Vec<JoinHandle<()>>,
    news: Arc<Mutex<Vec<Heard>>>,
    token: Vec<u8>,
}

struct Process {
    child: Child,
    killed: bool,
    exit: Option<Exit>,
}

/// What a rank has told.
#[derive(Clone, Debug, Default)]
struct Heard {
    result: Option<Vec<u8>>,
    error: Option<String>,
    panics: Vec<String>,
}

fn start(launch: &Launch) -> io::Result<World> {
    let secret = || RandomState::new().hash_one(launch.world_size);
    let token = format!("{:016x}{:016x}", secret(), secret());
    // Everybody on the machine sees the name of a socket, so the token is another number.
    let socket = format!(
        "collectives-launch-{}-{:016x}",
        std::process::id(),
        secret()
    );
    let mut world = World {
        ranks: Vec::new(),
        socket: channel::listen(&socket)?,
        output: Output::default(),
        readers: Vec::new(),
        news: Arc::new(Mutex::new(vec![Heard::default(); launch.world_size])),
        token: token.clone().into_bytes(),
    };
    if !launch.through.is_empty() {
        world.start_through(launch, &socket)?;
        return Ok(world);
    }
    // Of a machine that has loopback of one family alone, the other.
    let loopback = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];
    let listener = TcpListener::bind(&loopback.map(|ip| SocketAddr::new(ip, 0))[..])?;
    let address = listener.local_addr()?;
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let mut listener = Some(listener);
    let executable = std::env::current_exe()?;
    let size = launch.world_size.to_string();
    for rank in 0..launch.world_size {
        let mut command = Command::new(&executable);
        for foreign in std::env::vars_os().map(|(name, _)| name) {
            if foreign::is_of_launcher(&foreign) {
                command.env_remove(foreign);
            }
        }
        command
            .args(&launch.args)
            .envs(launch.vars.iter().map(|(name, value)| (name, value)))
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", &size)
            .env("LOCAL_WORLD_SIZE", &size)
            .env("MASTER_ADDR", &host)
            .env("MASTER_PORT", &port)
            .env(variables::TOKEN, &token)
            .env("COLLECTIVES_STORE_LISTENER", "stdin")
            .env(variables::BODY, &launch.body)
            .env(variables::SOCKET, &socket)
            .env(variables::PARENT, std::process::id().to_string())
            .env(variables::DEADLINE, launch.deadline.as_millis().to_string())
            // Only rank 0 gets the listener, and the parent keeps none: with rank 0 the port goes.
            .stdin(
                listener
                    .take()
                    .map_or_else(Stdio::null, |l| OwnedFd::from(l).into()),
            )
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        world.adopt(command.spawn()?, Rank::new(rank), launch.echo)?;
    }
    Ok(world)
}

impl World {
    /// Watches a process, and reads what it prints.
    fn adopt(&mut self, mut child: Child, rank: Rank, echo: bool) -> io::Result<()> {
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        self.ranks.push(Process {
            child,
            killed: false,
            exit: None,
        });
        if let Some(from) = stdout {
            let reader = self.output.collect(rank, Stream::Stdout, from, echo)?;
            self.readers.push(reader);
        }
        if let Some(from) = stderr {
            let reader = self.output.collect(rank, Stream::Stderr, from, echo)?;
            self.readers.push(reader);
        }
        Ok(())
    }

    /// Starts another launcher, which starts the ranks. What they print comes from it.
    fn start_through(&mut self, launch: &Launch, socket: &str) -> io::Result<()> {
        // A launcher that outlived its parent would keep its ranks.
        let mut words: Vec<OsString> = Vec::new();
        if std::path::Path::new("/usr/bin/setpriv").exists() {
            words.extend(["/usr/bin/setpriv", "--pdeathsig", "TERM"].map(OsString::from));
        }
        words.extend(launch.through.iter().cloned());
        words.push(std::env::current_exe()?.into());
        words.extend(launch.args.iter().cloned());
        let mut command = Command::new(&words[0]);
        for foreign in std::env::vars_os().map(|(name, _)| name) {
            if foreign::is_of_launcher(&foreign) {
                command.env_remove(foreign);
            }
        }
        command
            .args(&words[1..])
            .envs(launch.vars.iter().map(|(name, value)| (name, value)))
            .env(
                variables::TOKEN,
                String::from_utf8_lossy(&self.token).as_ref(),
            )
            .env(variables::BODY, &launch.body)
            .env(variables::SOCKET, socket)
            .env(variables::DEADLINE, launch.deadline.as_millis().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.adopt(command.spawn()?, Rank(0), launch.echo)
    }

    fn supervise(mut self, launch: &Launch) -> Report {
        let begun = Instant::now();
        let mut failed: Option<Instant> = None;
        loop {
            self.listen();
            for rank in &mut self.ranks {
                rank.look();
                if rank.exit.is_some_and(|exit| exit != Exit::Code(0)) {
                    failed.get_or_insert_with(Instant::now);
                }
            }
            if self.ranks.iter().all(|rank| rank.exit.is_some()) {
                break;
            }
            let late = begun.elapsed() > launch.deadline.saturating_add(MERCY);
            if late || failed.is_some_and(|at| at.elapsed() > launch.grace) {
                self.ranks.iter_mut().for_each(Process::kill);
            }
            thread::sleep(LOOK);
        }
        self.report(launch)
    }

    /// Everybody has ended: the last words, and then the report.
    fn report(mut self, launch: &Launch) -> Report {
        self.listen();
        let ended = Instant::now();
        while !self.readers.iter().all(JoinHandle::is_finished) && ended.elapsed() < LAST_WORDS {
            thread::sleep(LOOK);
        }
        let news = std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner));
        let is_launched = !launch.through.is_empty();
        let all_done = news.iter().all(|heard| heard.result.is_some());
        let report = |(index, heard): (usize, Heard)| {
            let process = &self.ranks[if is_launched { 0 } else { index }];
            let exit = process.exit.unwrap_or(Exit::Killed);
            // A launcher's exit is that of the rank that failed, or of the end they all had.
            let is_well = is_launched && !all_done && heard.result.is_some();
            RankReport {
                rank: Rank::new(index),
                pid: process.child.id(),
                exit: if is_well { Exit::Code(0) } else { exit },
                result: heard.result,
                error: heard.error,
                panics: heard.panics,
            }
        };
        Report {
            ranks: news.into_iter().enumerate().map(report).collect(),
            output: self.output.take(),
        }
    }

    /// Accepts the ranks that want to tell something.
    fn listen(&mut self) {
        while let Ok((stream, _)) = self.socket.accept() {
            let (news, token) = (Arc::clone(&self.news), self.token.clone());
            let reader = thread::Builder::new().name("news of a rank".to_owned());
            match reader.spawn(move || hear(stream, &news, &token)) {
                Ok(reader) => self.readers.push(reader),
                Err(error) => tracing::warn!(%error, "a rank will not be heard"),
            }
        }
    }
}

fn hear(mut stream: UnixStream, news: &Mutex<Vec<Heard>>, token: &[u8]) {
    // What is accepted from a socket that does not block may not block either.
    if stream.set_nonblocking(false).is_err() {
        return;
    }
    let Ok(Some(News::Rank(rank, theirs))) = News::receive(&mut stream) else {
        return;
    };
    if theirs != token {
        return;
    }
    while let Ok(Some(next)) = News::receive(&mut stream) {
        let mut news = news.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(heard) = news.get_mut(rank as usize) else {
            return;
        };
        match next {
            News::Rank(..) => return,
            News::Result(bytes) => heard.result = Some(bytes),
            News::Error(text) => heard.error = Some(text),
            News::Panic(text) => heard.panics.push(text),
        }
    }
}

impl Process {
    /// Reaps the process if it has ended.
    fn look(&mut self) {
        if self.exit.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.exit = Some(Exit::new(status, self.killed));
        }
    }

    /// Kills the process unless it has ended; its number cannot be another's before it is reaped.
    fn kill(&mut self) {
        if self.exit.is_none() && !self.killed {
            self.killed = self.child.kill().is_ok();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Only where starting the others failed.
        if self.exit.is_none() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}
