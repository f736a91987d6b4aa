//! One connection to what may be the store: a greeting, and what came of it, in words.

use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::limited::{Limited, is_shortage};
use super::reception::READY;
use super::wire::hello::{self, Answer, Hello, Refusal, Unread};

/// How long a machine that does not even refuse a connection is waited for.
const CONNECT: Duration = Duration::from_secs(5);

/// Why a connection came to nothing.
#[derive(Debug)]
pub(super) enum Declined {
    /// It is a store, and it says no.
    Refused(Refusal),
    /// It did not answer in its time: it may be a stranger, and it may be rank 0 before it serves.
    Silent(String),
    /// This process has not enough of something to connect anywhere.
    Unable(io::Error),
    /// No process serves there, or one that speaks something else.
    Absent(String),
}

/// A connection to the store, which has let this rank in.
pub(super) fn dial(
    address: SocketAddr,
    hello: &Hello,
    until: Instant,
) -> Result<TcpStream, Declined> {
    let mut stream = connect(address, until)?;
    let greeted = Instant::now();
    let heard = stream
        .write_all(&hello.encode())
        .map_err(Unread::Io)
        // A port may be open long before it is served, so this waits as long as there is time.
        .and_then(|()| hello::read(&mut Limited::new(&stream, until)));
    let answer = match heard {
        Ok(body) => Answer::decode(&body).map_err(|garbled| unread(&garbled.into(), greeted))?,
        Err(Unread::Version(theirs)) => Answer::Refused(Refusal::Version(theirs)),
        Err(Unread::Io(error)) => return Err(unread(&error, greeted)),
    };
    match answer {
        Answer::Refused(refusal) => Err(Declined::Refused(refusal)),
        Answer::Welcome => {
            let ready = stream.write_all(&[READY]);
            ready.map_err(|error| unread(&error, greeted))?;
            Ok(stream)
        }
    }
}

fn connect(address: SocketAddr, until: Instant) -> Result<TcpStream, Declined> {
    let left = until.saturating_duration_since(Instant::now());
    // A socket takes no limit of zero.
    let limit = left.clamp(Duration::from_millis(1), CONNECT);
    let connected = TcpStream::connect_timeout(&address, limit).and_then(|stream| {
        stream.set_write_timeout(Some(limit))?;
        Ok(stream)
    });
    connected.map_err(|error| match error {
        _ if is_shortage(&error) => Declined::Unable(error),
        _ if is_late(&error) => {
            Declined::Silent(format!("nothing answered a connection within {limit:?}"))
        }
        _ => Declined::Absent(error.to_string()),
    })
}

/// What it means that no whole answer came to a greeting.
fn unread(error: &io::Error, greeted: Instant) -> Declined {
    let waited = greeted.elapsed();
    match error.kind() {
        _ if is_late(error) => Declined::Silent(format!(
            "what listens there took the connection, and sent no answer to this rank's greeting within \
             {waited:.1?}: either it is no store, or its process does not serve it yet"
        )),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            Declined::Absent(format!(
                "what listens there took the connection, and ended it {waited:.1?} later without an \
                 answer to this rank's greeting"
            ))
        }
        ErrorKind::InvalidData => Declined::Absent(format!(
            "what listens there is no store of ours: it answered this rank's greeting with {error}"
        )),
        _ => Declined::Absent(format!("the answer to this rank's greeting: {error}")),
    }
}

/// Whether a socket's limit of time has passed; systems have two words for it.
pub(super) fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
