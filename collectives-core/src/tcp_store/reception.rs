//! Who may come in: the store's side of the first words on a connection.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::dial::is_late;
use super::limited::{Limited, deadline_in};
use super::server::Store;
use super::wire::hello::{self, Answer, Hello, Refusal, Unread, VERSION};

/// What a rank sends once it has read that it is welcome. Only then is the connection the rank, so
/// that one which died meanwhile cannot take the rank's place.
pub(super) const READY: u8 = 0x5A;

/// The rank that introduced itself properly, or `None` for anybody else, who has been told why
/// where that was possible.
pub(super) fn receive(store: &Store, stream: &TcpStream) -> Option<u32> {
    let mut limited = Limited::new(stream, deadline_in(store.patience));
    let _ = stream.set_write_timeout(Some(store.patience));
    let refusal = match introduce(store, &mut limited) {
        Ok(rank) => match confirm(&mut limited) {
            Ok(()) => {
                let _ = stream.set_read_timeout(None);
                let _ = stream.set_write_timeout(None);
                let _ = stream.set_nodelay(true);
                return Some(rank);
            }
            Err(error) => {
                store.lock().renounce(rank);
                tracing::debug!(%error, rank, "a connection died before it was a rank");
                return None;
            }
        },
        Err(Ok(refusal)) => refusal,
        Err(Err(error)) => {
            ignore(stream, store, &error);
            return None;
        }
    };
    tracing::warn!(?refusal, "the store refuses a connection");
    let mut stream = stream;
    let _ = stream.write_all(&Answer::Refused(refusal).encode());
    let _ = stream.shutdown(Shutdown::Write);
    // Closing with unread bytes would take the answer back.
    let _ = io::copy(&mut limited.take(1 << 10), &mut io::sink());
    None
}

/// Says what became of a connection that has not introduced itself. One that says nothing may be a
/// rank in trouble; others are a port scan, or a check that the port is open.
fn ignore(stream: &TcpStream, store: &Store, error: &io::Error) {
    let from = stream.peer_addr();
    let from = from.map_or_else(|_| "an unknown address".to_owned(), |from| from.to_string());
    if is_late(error) {
        tracing::warn!("{}", unheard(&from, store.patience));
    } else {
        tracing::debug!(%error, "the store ends a connection from {from}, which is no rank");
    }
}

fn unheard(from: &str, limit: Duration) -> String {
    format!(
        "the store ends a connection from {from}, which has not said within {limit:?} which rank it is"
    )
}

/// The announced rank, a refusal that the other side understands, or the end of the connection.
fn introduce(store: &Store, limited: &mut Limited<'_>) -> Result<u32, Result<Refusal, io::Error>> {
    let body = hello::read(limited).map_err(|unread| match unread {
        Unread::Version(_) => Ok(Refusal::Version(VERSION)),
        Unread::Io(error) => Err(error),
    })?;
    let hello = Hello::decode(&body).map_err(|_| Ok(Refusal::Malformed))?;
    if hello.token != store.token {
        return Err(Ok(Refusal::Token));
    }
    if hello.world_size != store.world_size {
        return Err(Ok(Refusal::WorldSize(store.world_size)));
    }
    store.lock().announce(hello.rank).map_err(Ok)?;
    Ok(hello.rank)
}

fn confirm(limited: &mut Limited<'_>) -> io::Result<()> {
    limited.stream().write_all(&Answer::Welcome.encode())?;
    let mut ready = [0];
    limited.read_exact(&mut ready)?;
    match ready {
        [READY] => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
