//! The first words on a connection, before either side trusts the other.
//!
//! Both directions begin with the same eight bytes in every version: the magic, the version, and
//! the length of what follows. So a stranger is known as one, and another version as another.

use std::io::{self, Read};

use super::{Cursor, Garbled};

/// No text protocol begins with these, and no other has them.
pub(crate) const MAGIC: [u8; 4] = *b"\xC0LST";
/// The version of everything in this protocol.
pub(crate) const VERSION: u16 = 1;
/// The bytes of a session's token.
pub(crate) const MAX_TOKEN: usize = 256;

const MAX_BODY: usize = 1 << 10;

/// A rank introduces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    /// Equal for everybody of one session, so that two jobs are not mixed up.
    pub(crate) token: Vec<u8>,
}

/// The store's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Welcome,
    Refused(Refusal),
}

/// Why a rank is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The store speaks this version.
    Version(u16),
    /// The store's world has this size.
    WorldSize(u32),
    RankOutOfRange,
    /// The rank is connected, or was.
    Duplicate,
    /// Another connection is just introducing itself as this rank; it may be a dead one.
    Busy,
    Token,
    Malformed,
}

/// What came in place of a message of our own version.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The other side speaks another version.
    Version(u16),
    /// The connection ended, or it is not this protocol.
    Io(io::Error),
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(self.rank.to_le_bytes());
        body.extend(self.world_size.to_le_bytes());
        body.extend_from_slice(&self.token[..self.token.len().min(MAX_TOKEN)]);
        framed(&body)
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Garbled> {
        let mut from = Cursor(body);
        let (rank, world_size) = (from.number()?, from.number()?);
        if from.0.len() > MAX_TOKEN {
            return Err(Garbled("a token longer than its limit"));
        }
        let token = from.0.to_vec();
        Ok(Self {
            rank,
            world_size,
            token,
        })
    }
}

impl Answer {
    pub(crate) fn encode(self) -> Vec<u8> {
        let (code, number) = match self {
            Self::Welcome => (0, 0),
            Self::Refused(Refusal::Version(version)) => (1, u32::from(version)),
            Self::Refused(Refusal::WorldSize(size)) => (2, size),
            Self::Refused(Refusal::RankOutOfRange) => (3, 0),
            Self::Refused(Refusal::Duplicate) => (4, 0),
            Self::Refused(Refusal::Busy) => (5, 0),
            Self::Refused(Refusal::Token) => (6, 0),
            Self::Refused(Refusal::Malformed) => (7, 0),
        };
        let mut body = vec![code];
        body.extend(u32::to_le_bytes(number));
        framed(&body)
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Garbled> {
        let mut from = Cursor(body);
        let (code, number) = (from.byte()?, from.number()?);
        from.end()?;
        Ok(Self::Refused(match code {
            0 => return Ok(Self::Welcome),
            1 => Refusal::Version(u16::try_from(number).unwrap_or(u16::MAX)),
            2 => Refusal::WorldSize(number),
            3 => Refusal::RankOutOfRange,
            4 => Refusal::Duplicate,
            5 => Refusal::Busy,
            6 => Refusal::Token,
            7 => Refusal::Malformed,
            _ => return Err(Garbled("an answer of an unknown kind")),
        }))
    }
}

fn framed(body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// The body of the other side's first message.
///
/// A message of another version is read to its end as well: closing a connection with unread bytes
/// would reset it, and the answer with it.
pub(crate) fn read(reader: &mut impl Read) -> Result<Vec<u8>, Unread> {
    let mut header = [0; 8];
    reader.read_exact(&mut header)?;
    let [a, b, c, d, version @ .., e, f] = header;
    if [a, b, c, d] != MAGIC {
        return Err(Garbled("this is not a store's protocol").into());
    }
    let length = usize::from(u16::from_le_bytes([e, f]));
    if length > MAX_BODY {
        return Err(Garbled("a first message longer than the limit").into());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    match u16::from_le_bytes(version) {
        VERSION => Ok(body),
        other => Err(Unread::Version(other)),
    }
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Garbled> for Unread {
    fn from(garbled: Garbled) -> Self {
        Self::Io(garbled.into())
    }
}
