//! The store's side: a thread that accepts, and for each rank one that reads and one that writes.

use std::io::{self, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::address;
use super::limited::is_shortage;
use super::peer::{Outgoing, outbox};
use super::reception;
use super::state::State;
use super::wire::message::{Key, Reply, Request};
use super::wire::{read_frame, request_limit};

/// Connections that may introduce themselves at the same time; more are turned away.
const MAX_STRANGERS: usize = 128;
/// Readers and writers need little, and there may be many.
const STACK: usize = 256 << 10;
/// How long the process that hosts the store waits, when it goes, for words that are on their
/// way, and for late ranks that should hear them.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What every thread of the store shares.
#[derive(Debug)]
pub(super) struct Store {
    state: Mutex<State>,
    /// Frames that no writer has handed to its socket yet.
    unsent: Arc<AtomicUsize>,
    strangers: AtomicUsize,
    pub(super) world_size: u32,
    pub(super) token: Vec<u8>,
    /// What a connection gets to introduce itself, from its first byte to its last.
    pub(super) patience: Duration,
    /// Where this process reaches the listener.
    addresses: Vec<SocketAddr>,
}

/// The hosting process's hold on the store, which ends once this and every rank has gone.
#[derive(Debug)]
pub(super) struct Host(Arc<Store>);

impl Host {
    /// Begins to serve.
    ///
    /// # Errors
    ///
    /// When there is no thread for it.
    pub(super) fn start(
        listener: TcpListener,
        world_size: u32,
        token: Vec<u8>,
        patience: Duration,
    ) -> io::Result<Self> {
        let store = Arc::new(Store {
            state: Mutex::new(State::new(world_size)),
            unsent: Arc::default(),
            strangers: AtomicUsize::new(0),
            world_size,
            token,
            patience,
            addresses: address::own(&listener)?,
        });
        // It may have been handed over by whoever bound it, in any mode.
        listener.set_nonblocking(false)?;
        let accepting = Arc::clone(&store);
        spawn("store accept", move || accept(&accepting, &listener))?;
        Ok(Self(store))
    }

    /// Where a rank of the same process reaches it, best first.
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.0.addresses
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> (usize, usize) {
        self.0.lock().remembered()
    }

    #[cfg(test)]
    pub(super) fn store(&self) -> std::sync::Weak<Store> {
        Arc::downgrade(&self.0)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The process may end right after, and what others were told would be lost with it.
        let begun = Instant::now();
        let quiet = || {
            let state = self.0.lock();
            !state.is_connected(0) && !state.is_owing() && self.0.unsent.load(Ordering::SeqCst) == 0
        };
        while !quiet() && begun.elapsed() < LAST_WORDS {
            thread::sleep(Duration::from_millis(1));
        }
        self.0.lock().hosted = false;
        self.0.end_if_over();
    }
}

impl Store {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_if_over(&self) {
        if self.lock().is_over() {
            // The accepting thread looks up at every connection.
            let knock = |address| TcpStream::connect_timeout(address, LAST_WORDS).is_ok();
            let _heard = self.addresses.iter().any(knock);
        }
    }
}

fn accept(store: &Arc<Store>, listener: &TcpListener) {
    // A descriptor to give up when there is no other, so that a rank that cannot be taken is told.
    let mut spare = listener.try_clone().ok();
    loop {
        let accepted = match listener.accept() {
            Err(error) if is_shortage(&error) && spare.take().is_some() => listener.accept(),
            accepted => accepted,
        };
        if store.lock().is_over() {
            return;
        }
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors for longer, or the stranger has gone already.
                tracing::debug!(%error, "the store could not accept a connection");
                thread::sleep(Duration::from_millis(20));
                continue;
            }
        };
        if store.strangers.fetch_add(1, Ordering::SeqCst) >= MAX_STRANGERS {
            store.strangers.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let full = match &spare {
            Some(_) => None,
            None => listener.try_clone().map(|again| spare = Some(again)).err(),
        };
        let serving = Arc::clone(store);
        let served = spawn("store read", move || {
            serve(&serving, stream, full);
            serving.end_if_over();
        });
        if let Err(error) = served {
            store.strangers.fetch_sub(1, Ordering::SeqCst);
            tracing::warn!(%error, "the store has no thread for a connection");
        }
    }
}

/// Serves a connection; `full` says why it cannot stay.
fn serve(store: &Arc<Store>, stream: TcpStream, full: Option<io::Error>) {
    let introduced = reception::receive(store, &stream);
    store.strangers.fetch_sub(1, Ordering::SeqCst);
    let Some(rank) = introduced else { return };
    let (outbox, outgoing) = outbox(&store.unsent);
    let stream = Arc::new(stream);
    let into = Arc::clone(&stream);
    let writing = match full {
        Some(error) => Err(error),
        None => spawn("store write", move || write(&into, &outgoing)),
    };
    store.lock().admit(rank, outbox);
    let cause = match writing {
        Ok(()) => read(store, rank, &stream),
        Err(error) => Some(turn_away(rank, &stream, &error)),
    };
    if let Some(cause) = &cause {
        tracing::warn!(rank, cause, "a rank failed");
    }
    // The outbox ends with this, and the writer with the outbox.
    store.lock().leave(rank, cause);
}

/// Tells a rank that it cannot be served, and what the others are told.
fn turn_away(rank: u32, mut stream: &TcpStream, error: &io::Error) -> String {
    let cause = format!("the store could not serve it: {error}");
    let failed = Reply::Failed {
        key: Key::new(),
        rank,
        cause: cause.clone(),
    };
    if let Err(error) = stream.write_all(&failed.encode()) {
        tracing::debug!(%error, rank, "a rank that cannot be served was not told");
    }
    cause
}

/// Serves a rank until it goes, and returns its cause if it failed.
fn read(store: &Store, rank: u32, stream: &TcpStream) -> Option<String> {
    let limit = request_limit(store.world_size as usize);
    let mut reader = BufReader::new(stream);
    loop {
        let request = match read_frame(&mut reader, limit) {
            Ok(Some(body)) => Request::decode(&body),
            Ok(None) => return Some("its connection to the store was lost".to_owned()),
            Err(error) => return Some(format!("its connection to the store was lost: {error}")),
        };
        let handled = match request {
            Ok(Request::Leave { cause }) => return cause,
            Ok(request) => store.lock().handle(rank, request),
            Err(garbled) => Err(garbled),
        };
        if let Err(garbled) = handled {
            return Some(format!("it broke the store's protocol: {}", garbled.0));
        }
    }
}

fn write(mut stream: &TcpStream, outgoing: &Outgoing) {
    if let Err(error) = outgoing.drain(|frame| stream.write_all(frame)) {
        tracing::debug!(%error, "the store could not reach a rank");
    }
    let _ = stream.shutdown(Shutdown::Write);
}

pub(super) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK)
        .spawn(body)
        .map(drop)
}
