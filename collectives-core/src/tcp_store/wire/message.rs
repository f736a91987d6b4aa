//! What ranks and the store say to each other once they know each other.

use std::time::Duration;

use super::{Cursor, Frame, Garbled, MAX_CAUSE, MAX_KEY, MAX_PAYLOAD, MAX_ROUND};

/// The name of a group: empty for the world, else the names from the world down to the group, each
/// behind its length.
pub(crate) type Key = Vec<u8>;

/// What a rank says to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// The rank takes part in a group; members are ranks of the world.
    Open { key: Key, members: Vec<u32> },
    /// The rank has dropped its last end of the group.
    Close { key: Key },
    /// The rank arrives in a round.
    Post {
        key: Key,
        round: String,
        payload: Vec<u8>,
    },
    /// The rank's deadline has passed, and it asks for the outcome "timed out".
    Abort {
        key: Key,
        round: String,
        waited: Duration,
    },
    /// Who is absent from a round that the rank waits in?
    Who { key: Key, round: String },
    /// The rank failed, as far as this group is concerned.
    Publish { key: Key, cause: String },
    /// The rank goes and will not come back; with a cause, it failed.
    Leave { cause: Option<String> },
}

/// What the store says to a rank. Ranks in it are positions in the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A round is over.
    Outcome {
        key: Key,
        round: String,
        outcome: Outcome,
    },
    /// The ranks that have not arrived yet.
    Absent {
        key: Key,
        round: String,
        ranks: Vec<u32>,
    },
    /// The first failure in a group.
    Failed { key: Key, rank: u32, cause: String },
}

/// How a round ended, fixed once for all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    All(Vec<Vec<u8>>),
    Timeout { absent: Vec<u32>, waited: Duration },
    PeerFailed { rank: u32, cause: String },
    Misuse(String),
}

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Open { key, members } => Frame::new(0).bytes(key).numbers(members),
            Self::Close { key } => Frame::new(1).bytes(key),
            Self::Post {
                key,
                round,
                payload,
            } => Frame::new(2)
                .bytes(key)
                .bytes(round.as_bytes())
                .bytes(payload),
            Self::Abort { key, round, waited } => {
                let frame = Frame::new(3).bytes(key).bytes(round.as_bytes());
                duration(frame, *waited)
            }
            Self::Who { key, round } => Frame::new(4).bytes(key).bytes(round.as_bytes()),
            Self::Publish { key, cause } => Frame::new(5).bytes(key).bytes(cut(cause)),
            Self::Leave { cause: None } => Frame::new(6),
            Self::Leave { cause: Some(cause) } => Frame::new(7).bytes(cut(cause)),
        }
        .finish()
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Garbled> {
        let mut from = Cursor(body);
        let tag = from.byte()?;
        let request = match tag {
            6 => Self::Leave { cause: None },
            7 => Self::Leave {
                cause: Some(from.text(MAX_CAUSE)?),
            },
            _ => {
                let key = from.bytes(MAX_KEY)?.to_vec();
                match tag {
                    0 => Self::Open {
                        key,
                        members: from.numbers()?,
                    },
                    1 => Self::Close { key },
                    2 => {
                        let round = from.text(MAX_ROUND)?;
                        let payload = from.bytes(MAX_PAYLOAD)?.to_vec();
                        Self::Post {
                            key,
                            round,
                            payload,
                        }
                    }
                    3 => {
                        let round = from.text(MAX_ROUND)?;
                        Self::Abort {
                            key,
                            round,
                            waited: read_duration(&mut from)?,
                        }
                    }
                    4 => Self::Who {
                        key,
                        round: from.text(MAX_ROUND)?,
                    },
                    5 => Self::Publish {
                        key,
                        cause: from.text(MAX_CAUSE)?,
                    },
                    _ => return Err(UNKNOWN),
                }
            }
        };
        from.end().map(|()| request)
    }
}

impl Reply {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Outcome {
                key,
                round,
                outcome,
            } => {
                let frame = |tag| Frame::new(tag).bytes(key).bytes(round.as_bytes());
                match outcome {
                    Outcome::All(all) => all.iter().fold(frame(0), |frame, each| frame.bytes(each)),
                    Outcome::Timeout { absent, waited } => {
                        duration(frame(1).numbers(absent), *waited)
                    }
                    Outcome::PeerFailed { rank, cause } => frame(2).number(*rank).bytes(cut(cause)),
                    Outcome::Misuse(text) => frame(3).bytes(cut(text)),
                }
            }
            Self::Absent { key, round, ranks } => Frame::new(4)
                .bytes(key)
                .bytes(round.as_bytes())
                .numbers(ranks),
            Self::Failed { key, rank, cause } => {
                Frame::new(5).bytes(key).number(*rank).bytes(cut(cause))
            }
        }
        .finish()
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Garbled> {
        let mut from = Cursor(body);
        let tag = from.byte()?;
        let key = from.bytes(MAX_KEY)?.to_vec();
        if tag == 5 {
            let rank = from.number()?;
            let cause = from.text(MAX_CAUSE)?;
            return from.end().map(|()| Self::Failed { key, rank, cause });
        }
        let round = from.text(MAX_ROUND)?;
        let outcome = match tag {
            0 => {
                let mut all = Vec::new();
                while !from.0.is_empty() {
                    all.push(from.bytes(MAX_PAYLOAD)?.to_vec());
                }
                Outcome::All(all)
            }
            1 => Outcome::Timeout {
                absent: from.numbers()?,
                waited: read_duration(&mut from)?,
            },
            2 => Outcome::PeerFailed {
                rank: from.number()?,
                cause: from.text(MAX_CAUSE)?,
            },
            3 => Outcome::Misuse(from.text(MAX_CAUSE)?),
            4 => {
                let ranks = from.numbers()?;
                return from.end().map(|()| Self::Absent { key, round, ranks });
            }
            _ => return Err(UNKNOWN),
        };
        from.end().map(|()| Self::Outcome {
            key,
            round,
            outcome,
        })
    }
}

fn duration(frame: Frame, duration: Duration) -> Frame {
    frame
        .long(duration.as_secs())
        .number(duration.subsec_nanos())
}

fn read_duration(from: &mut Cursor<'_>) -> Result<Duration, Garbled> {
    let (seconds, nanos) = (from.long()?, from.number()?);
    if nanos >= 1_000_000_000 {
        return Err(Garbled("a duration with more than a second of nanoseconds"));
    }
    Ok(Duration::new(seconds, nanos))
}

/// As much of a cause as may be sent, cut between two characters.
fn cut(cause: &str) -> &[u8] {
    let end = (0..=cause.len().min(MAX_CAUSE))
        .rev()
        .find(|&end| cause.is_char_boundary(end));
    &cause.as_bytes()[..end.unwrap_or(0)]
}

const UNKNOWN: Garbled = Garbled("a message of an unknown kind");
