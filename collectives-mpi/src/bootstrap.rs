//! A control plane for ranks that an MPI launcher started.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::rank::Rank;
use collectives_core::rendezvous::{Card, Host};
use collectives_core::tcp_store::TcpStore;

use crate::environment::Mpi;
use crate::error::BACKEND;
use crate::exit;
use crate::raw::Comm;

/// The control plane of an MPI job: MPI tells every rank where to meet, and the ranks meet in a
/// [store](collectives_core::tcp_store) that rank 0 hosts.
///
/// Rounds with deadlines, one authority for each outcome and failures that are noticed at once need
/// somebody who answers while ranks are busy or gone. MPI has nobody like that without a thread that
/// polls it; a socket has.
#[derive(Debug)]
#[non_exhaustive]
pub struct MpiBootstrap;

/// Bytes that travel by MPI: a card, or why there is none.
const ADDRESS: usize = 2 << 10;

impl MpiBootstrap {
    /// The control plane of all ranks of the job; collective.
    ///
    /// Ranks of rank 0's machine meet it on the loopback interface, others at the addresses its
    /// machine has, or at the one that `COLLECTIVES_STORE_HOST` names on rank 0.
    ///
    /// # Errors
    ///
    /// Those of [`Mpi::initialize`] and of [`Card::join`]; what rank 0 could not do fails on all
    /// ranks. MPI itself waits without a deadline: a rank that is still alone in it when the deadline
    /// has passed ends the job with a message.
    pub fn of_world(deadline: Duration) -> Result<Arc<dyn Bootstrap>> {
        let mpi = Mpi::initialize()?;
        let store = meet(mpi, deadline);
        let store = store.map(|store| -> Arc<dyn Bootstrap> { Arc::new(store) });
        store.map_err(|error| {
            let error = error.during("bootstrap").on_backend(BACKEND);
            error.on_rank(mpi.rank())
        })
    }
}

fn meet(mpi: &Mpi, deadline: Duration) -> Result<TcpStore> {
    let host = (mpi.rank() == Rank(0)).then(Host::listen);
    let mut bytes = match &host {
        Some(Ok(host)) => host.card().to_text().into_bytes(),
        Some(Err(error)) => error.to_string().into_bytes(),
        None => Vec::new(),
    };
    bytes.resize(ADDRESS, 0);
    {
        let _turn = mpi.turn();
        let _alarm = Alarm::set(deadline);
        // SAFETY: The buffer has this length on every rank.
        unsafe { Comm::world().bcast(bytes.as_mut_ptr(), ADDRESS, 0) }?;
    }
    if let Some(host) = host {
        return host?.join(mpi.world_size(), deadline);
    }
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_end_matches('\0');
    let card = Card::parse(text).map_err(|_| {
        let text = format!("rank 0 does not host the control plane: {text}");
        Error::new(ErrorKind::System(text))
    })?;
    card.join(mpi.rank(), mpi.world_size(), deadline)
}

/// Ends the job unless it is dropped in time.
struct Alarm(Option<Sender<()>>);

impl Alarm {
    fn set(after: Duration) -> Self {
        let (disarm, disarmed) = channel();
        let thread = thread::Builder::new().name("mpi-alarm".to_owned());
        let set = thread.spawn(move || {
            if disarmed.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
                let why = format!("a rank has waited {after:?} for the others to bootstrap");
                exit::abort_job(&why, exit::FAILED);
            }
        });
        Self(set.is_ok().then_some(disarm))
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}
