//! The bytes between a rank and the store: standard library only, and nobody is trusted.
//!
//! A connection begins with one [`hello`] each way. After that both sides send frames: a length of
//! four bytes, little endian, and as many bytes of a [`message`]. A length above the limit of its
//! direction ends the connection before anything is allocated for it.

pub(super) mod hello;
pub(super) mod message;

use std::io::{self, ErrorKind, Read};

/// The bytes one rank may give to one round.
pub(super) const MAX_PAYLOAD: usize = 1 << 20;
/// The bytes of a round's name.
pub(super) const MAX_ROUND: usize = 1 << 10;
/// The bytes that a group's name takes, those of the groups around it included.
pub(super) const MAX_KEY: usize = 1 << 12;
/// The bytes of a failure's cause; longer ones are cut.
pub(super) const MAX_CAUSE: usize = 1 << 12;

/// What a frame takes beside names, payloads and lists of ranks.
const OVERHEAD: usize = 64;
/// A frame is read in pieces of this size, so that its length alone costs nothing.
const PIECE: usize = 1 << 16;

/// Bytes that are no message, and what is wrong with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Garbled(pub(super) &'static str);

impl From<Garbled> for io::Error {
    fn from(garbled: Garbled) -> Self {
        Self::new(ErrorKind::InvalidData, garbled.0)
    }
}

/// The largest frame a rank may send.
pub(super) fn request_limit(world_size: usize) -> usize {
    let body = MAX_PAYLOAD.max(world_size.saturating_mul(4));
    body + MAX_KEY + MAX_ROUND + MAX_CAUSE + OVERHEAD
}

/// The largest frame the store may send.
pub(super) fn reply_limit(world_size: usize) -> usize {
    let body = world_size.saturating_mul(MAX_PAYLOAD + 4);
    body.saturating_add(MAX_KEY + MAX_ROUND + MAX_CAUSE + OVERHEAD)
}

/// The next frame, or `None` where the other side ended the connection between two frames.
pub(super) fn read_frame(reader: &mut impl Read, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    let mut have = 0;
    while have < length.len() {
        match reader.read(&mut length[have..]) {
            Ok(0) if have == 0 => return Ok(None),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => have += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > limit {
        return Err(Garbled("a frame longer than the limit").into());
    }
    let mut body = Vec::new();
    while body.len() < length {
        let have = body.len();
        // Doubling keeps the copies few, and the end is known, so nothing is allocated past it.
        let piece = (length - have).min(have.max(PIECE));
        body.try_reserve_exact(piece)
            .map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
        body.resize(have + piece, 0);
        reader.read_exact(&mut body[have..])?;
    }
    Ok(Some(body))
}

/// A frame being written.
#[derive(Debug)]
pub(super) struct Frame(Vec<u8>);

impl Frame {
    pub(super) fn new(tag: u8) -> Self {
        Self(vec![0, 0, 0, 0, tag])
    }

    pub(super) fn number(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn long(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Bytes behind their length.
    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        let mut frame = self.number(count(bytes.len()));
        frame.0.extend_from_slice(bytes);
        frame
    }

    /// Numbers behind their count.
    pub(super) fn numbers(self, values: &[u32]) -> Self {
        let frame = self.number(count(values.len()));
        values
            .iter()
            .fold(frame, |frame, &value| frame.number(value))
    }

    /// The finished bytes, the length in front.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let length = count(self.0.len() - 4);
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// Lengths are checked against the limits long before, which all fit.
fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// A message being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn byte(&mut self) -> Result<u8, Garbled> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn number(&mut self) -> Result<u32, Garbled> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn long(&mut self) -> Result<u64, Garbled> {
        self.array().map(u64::from_le_bytes)
    }

    /// Bytes behind their length, which may be `limit` at most.
    pub(super) fn bytes(&mut self, limit: usize) -> Result<&'a [u8], Garbled> {
        let length = self.number()? as usize;
        if length > limit {
            return Err(Garbled("a part longer than its limit"));
        }
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(SHORT)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn text(&mut self, limit: usize) -> Result<String, Garbled> {
        let text = str::from_utf8(self.bytes(limit)?).map_err(|_| Garbled("text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    /// Numbers behind their count; what they allocate has already been received.
    pub(super) fn numbers(&mut self) -> Result<Vec<u32>, Garbled> {
        let count = self.number()? as usize;
        let length = count.checked_mul(4).ok_or(SHORT)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(SHORT)?;
        self.0 = rest;
        let number = |piece: &[u8]| piece.try_into().map_or(0, u32::from_le_bytes);
        Ok(bytes.chunks_exact(4).map(number).collect())
    }

    pub(super) fn end(self) -> Result<(), Garbled> {
        match self.0 {
            [] => Ok(()),
            _ => Err(Garbled("bytes after the end of a message")),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        let (array, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*array)
    }
}

const SHORT: Garbled = Garbled("a message shorter than it says");
