//! What the ranks of one communicator share: words, slots and the first failure. Nothing else.

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use collectives_core::disorder;
use collectives_core::error::{Error, ErrorKind};
use collectives_core::rank::Rank;
use crossbeam_utils::CachePadded;

use crate::flat::FlatTable;
use crate::lobby::Lobby;
use crate::meeting::Verdicts;
use crate::messages::Mail;
use crate::post::{EAGER, Post};
use crate::standing::Standing;

/// The data plane of one communicator.
pub(crate) struct Fabric {
    members: Box<[Member]>,
    pub(crate) lobby: Lobby,
    pub(crate) verdicts: Mutex<Verdicts>,
    pub(crate) mail: Mail,
    /// Each rank's own layout of its windows, for the multicast of the device model.
    pub(crate) flat: Box<[Mutex<FlatTable>]>,
    broken: CachePadded<AtomicBool>,
    failure: Mutex<Option<Failure>>,
}

/// The first failure of a communicator.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) rank: Rank,
    pub(crate) cause: String,
    pub(crate) aborted: bool,
}

impl Failure {
    /// As a rank reports it.
    pub(crate) fn seen_from(self, rank: Rank) -> Error {
        let heard = disorder::heard(self.rank, &self.cause);
        let ErrorKind::PeerFailed { rank: who, cause } = heard.kind() else {
            return heard;
        };
        match (*who == rank, self.aborted) {
            (true, true) => Error::new(ErrorKind::Aborted {
                cause: cause.clone(),
            }),
            (true, false) => Error::new(ErrorKind::Poisoned {
                cause: cause.clone(),
            }),
            (false, _) => heard,
        }
    }
}

/// One rank's words. Operations alternate between the two slots: a rank posts operation `k + 2`
/// only after operation `k + 1` was decided, and that needs everybody to have left `k`.
#[repr(align(128))]
pub(crate) struct Member {
    pub(crate) slots: [Slot; 2],
    /// The last operation this rank has left: it reads nothing of it any more.
    pub(crate) left: CachePadded<AtomicU64>,
    /// Whether this rank shut the communicator down.
    pub(crate) gone: AtomicBool,
    /// Where this rank is in its rounds.
    pub(crate) standing: CachePadded<Standing>,
}

/// A rank's part of one operation.
#[repr(C, align(128))]
pub(crate) struct Slot {
    /// Twice the number of the operation this slot was last decided for, plus one if the rank did
    /// not arrive in it. Set once for each operation, by compare-and-exchange: by the rank itself,
    /// or by a peer that gave up waiting.
    pub(crate) word: AtomicU64,
    post: UnsafeCell<Post>,
    eager: UnsafeCell<[u8; EAGER]>,
}

// SAFETY: A slot's post and payload are written by its rank before it arrives in an operation and
// read by peers only after they saw it arrive; it writes them again only when all have left.
unsafe impl Sync for Slot {}
// SAFETY: The pointers in a post are used under the rules of the meeting only.
unsafe impl Send for Slot {}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("left", &self.left)
            .field("gone", &self.gone)
            .finish_non_exhaustive()
    }
}

impl Slot {
    fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            post: UnsafeCell::new(Post::NONE),
            eager: UnsafeCell::new([0; EAGER]),
        }
    }

    pub(crate) fn post(&self) -> *mut Post {
        self.post.get()
    }

    /// A small payload.
    pub(crate) fn small(&self) -> *const u8 {
        // SAFETY: The post is inside the slot; this makes no reference to it.
        unsafe { (&raw const (*self.post.get()).small).cast() }
    }

    pub(crate) fn eager(&self) -> *mut u8 {
        self.eager.get().cast()
    }
}

impl Fabric {
    pub(crate) fn new(world_size: usize) -> Self {
        let member = |_| Member {
            slots: [Slot::new(), Slot::new()],
            left: CachePadded::new(AtomicU64::new(0)),
            gone: AtomicBool::new(false),
            standing: CachePadded::default(),
        };
        Self {
            members: (0..world_size).map(member).collect(),
            lobby: Lobby::new(world_size),
            verdicts: Mutex::default(),
            mail: Mail::new(world_size),
            flat: (0..world_size).map(|_| Mutex::default()).collect(),
            broken: CachePadded::new(AtomicBool::new(false)),
            failure: Mutex::new(None),
        }
    }

    #[inline]
    pub(crate) fn world_size(&self) -> usize {
        self.members.len()
    }

    #[inline]
    pub(crate) fn member(&self, rank: usize) -> &Member {
        &self.members[rank]
    }

    /// Whether a failure was published: blocked and later calls fail.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Publishes a failure; the first one stays.
    pub(crate) fn fail(&self, rank: Rank, cause: &str, aborted: bool) {
        lock(&self.failure).get_or_insert_with(|| Failure {
            rank,
            cause: cause.to_owned(),
            aborted,
        });
        self.broken.store(true, Ordering::SeqCst);
        self.lobby.wake();
    }

    /// The failure as `rank` reports it.
    pub(crate) fn failure(&self, rank: Rank) -> Option<Error> {
        let failure = lock(&self.failure).clone()?;
        Some(failure.seen_from(rank))
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("world_size", &self.world_size())
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

/// Locks; a panic elsewhere leaves nothing half-written that would matter.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
