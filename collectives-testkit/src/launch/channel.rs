//! What a rank tells its parent: frames of a tag, a length and bytes over an abstract socket.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// The longest result, or panic message, that is passed.
pub(crate) const MAX_NEWS: usize = 64 << 20;

/// A rank's news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Which rank this is, and the session's token; the first thing on a connection.
    Rank(u32, Vec<u8>),
    Result(Vec<u8>),
    Error(String),
    Panic(String),
}

impl News {
    pub(crate) fn send(&self, to: &mut impl Write) -> io::Result<()> {
        let hello;
        let (tag, bytes) = match self {
            Self::Rank(rank, token) => {
                hello = [&rank.to_le_bytes(), &token[..]].concat();
                (0, &hello[..])
            }
            Self::Result(bytes) => (1, &bytes[..]),
            Self::Error(text) => (2, text.as_bytes()),
            Self::Panic(text) => (3, text.as_bytes()),
        };
        if bytes.len() > MAX_NEWS {
            return Err(io::Error::other(format!(
                "a rank has {} bytes to tell",
                bytes.len()
            )));
        }
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut frame = Vec::with_capacity(5 + bytes.len());
        frame.push(tag);
        frame.extend(length.to_le_bytes());
        frame.extend_from_slice(bytes);
        to.write_all(&frame)
    }

    /// The next news, or `None` where the rank ended between two of them.
    pub(crate) fn receive(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut tag = [0];
        // A process that was stopped and goes on has its call interrupted, and nothing else.
        let read = loop {
            match from.read(&mut tag) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        if read == 0 {
            return Ok(None);
        }
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length);
        if length as usize > MAX_NEWS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Vec::new();
        from.take(u64::from(length)).read_to_end(&mut bytes)?;
        if bytes.len() < length as usize {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        match tag {
            [0] => {
                let (rank, token) = bytes
                    .split_first_chunk()
                    .ok_or(io::ErrorKind::InvalidData)?;
                Ok(Some(Self::Rank(u32::from_le_bytes(*rank), token.to_vec())))
            }
            [1] => Ok(Some(Self::Result(bytes))),
            [2] => Ok(Some(Self::Error(text(bytes)))),
            [3] => Ok(Some(Self::Panic(text(bytes)))),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The parent's side.
pub(crate) fn listen(name: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The rank's side.
pub(crate) fn connect(name: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_survive_the_way_and_what_is_cut_is_an_error() {
        let all = [
            News::Rank(7, b"token".to_vec()),
            News::Result(vec![1, 2, 3]),
            News::Error("é".to_owned()),
            News::Panic(String::new()),
        ];
        let mut bytes = Vec::new();
        for news in &all {
            news.send(&mut bytes).unwrap();
        }
        let mut from = &bytes[..];
        for news in all {
            assert_eq!(News::receive(&mut from).unwrap(), Some(news));
        }
        assert_eq!(News::receive(&mut from).unwrap(), None);
        assert!(News::receive(&mut &bytes[..3]).is_err());
        assert!(News::receive(&mut &bytes[..8]).is_err());
        assert!(News::receive(&mut &[1, 255, 255, 255, 255][..]).is_err());
        assert!(News::receive(&mut &[9, 0, 0, 0, 0][..]).is_err());
    }
}
