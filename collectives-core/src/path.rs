//! Which way a call takes, decided from one table and reported with the reason.

use std::fmt;
use std::ops::RangeInclusive;

use crate::collective::{Collective, OpKind};
use crate::dtype::DType;
use crate::rank::Rank;
use crate::reduce::ReduceOp;
use crate::scratch::SlotId;

/// The way the data of one call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Path {
    /// The operands lay in windows; the symmetric kernel read and wrote them where they are.
    ZeroCopy,
    /// Operands were copied through a scratch slot, where the symmetric kernel ran.
    Staged,
    /// The ordinary path, because nothing better exists or was asked for.
    Direct,
    /// The ordinary path, although staging was wanted.
    Fallback,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroCopy => "zero-copy",
            Self::Staged => "staged",
            Self::Direct => "direct",
            Self::Fallback => "fallback",
        })
    }
}

/// Why a call took its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The sides the symmetric kernel needs lie in windows.
    #[error("the operands lie in windows")]
    Registered,
    /// Staging was asked for, or pays at this size.
    #[error("staged through scratch")]
    StagingPays,
    /// Staging would cost more than it gains at this size.
    #[error("too small for staging to pay")]
    TooSmall,
    /// Staging is switched off, or there is no scratch allocator.
    #[error("staging is off")]
    StagingOff,
    /// No element moves.
    #[error("no elements")]
    Empty,
    /// There is one rank only.
    #[error("a single rank")]
    SingleRank,
    /// This kind of operation is never served by a symmetric kernel.
    #[error("no symmetric kernel for this operation")]
    NoKernelForOperation,
    /// The operation has a symmetric kernel, but not for this type, reduction or size.
    #[error("no symmetric kernel for this element type, reduction or size")]
    NoKernelForType,
    /// The backend has no symmetric memory here.
    #[error("no symmetric memory on this platform")]
    NoSymmetricMemory,
    /// Larger than the cap on staged requests.
    #[error("larger than the cap")]
    OverCap,
    /// The limit on mapped bytes is reached.
    #[error("the limit on mapped bytes is reached")]
    OverLimit,
    /// The limit on windows is reached.
    #[error("the limit on windows is reached")]
    OverWindows,
    /// The addresses for windows are used up.
    #[error("the addresses for windows are used up")]
    OverAddresses,
    /// The policy grows by mapping bytes twice, which the backend cannot.
    #[error("memory cannot be mapped twice here")]
    NoAliasing,
    /// A miss while the stream captures, with the fallback configured.
    #[error("a miss while capturing")]
    MissInCapture,
    /// A miss after the seal, with the fallback configured.
    #[error("a miss after the seal")]
    MissAfterSeal,
    /// Some rank was out of memory, with the fallback configured.
    #[error("out of memory on some rank")]
    OutOfMemory,
    /// The policy refused.
    #[error("the policy refused")]
    Policy,
}

/// The symmetric kernel a call is expected to run, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// The ordinary kernel of the library.
    Ordinary,
    /// By the backend's table; the library makes the final choice.
    Predicted(&'static str),
    /// The library was told to use it, and would have failed otherwise.
    Forced(&'static str),
}

/// What one call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpReport {
    /// The path arranged.
    pub path: Path,
    /// Why.
    pub reason: Reason,
    /// Bytes of the larger operand on this rank.
    pub bytes: usize,
    /// Pieces that went through scratch one after another: one for a call that was staged whole, none
    /// for one that was not staged.
    pub pieces: u32,
    /// The scratch slot, where one was used.
    pub slot: Option<SlotId>,
    /// The kernel.
    pub kernel: Kernel,
}

/// What to do when a call cannot take a symmetric path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// Take the ordinary path and report it.
    #[default]
    Allow,
    /// Fail before any data moves. A backend whose library can be told so has it use a symmetric
    /// kernel or fail too, and reports say [`Kernel::Forced`]; with the others it is the table that
    /// says which kernel a call gets, and reports say [`Kernel::Predicted`].
    Forbid,
}

/// When to copy operands through scratch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Staging {
    /// Where the backend's table says that it pays.
    #[default]
    Auto,
    /// Whenever a symmetric kernel exists, whatever the size, also for operands in windows.
    Forced,
    /// Never.
    Never,
}

/// How [`Collectives::reduce_scatter_average`] averages.
///
/// [`Collectives::reduce_scatter_average`]: crate::collectives::Collectives::reduce_scatter_average
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Averaging {
    /// As an average, unless symmetric kernels serve the sum of these elements and not the average.
    #[default]
    Auto,
    /// As an average, whatever path that takes.
    Native,
    /// As a sum that the caller divides by the number of ranks.
    SumThenScale,
}

/// Which operands must lie in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Sides {
    /// What is read.
    Send,
    /// What is written.
    Recv,
    /// Both.
    Both,
}

impl Sides {
    /// Whether what is read must lie in a window.
    #[must_use]
    pub const fn send(self) -> bool {
        matches!(self, Self::Send | Self::Both)
    }

    /// Whether what is written must lie in a window.
    #[must_use]
    pub const fn recv(self) -> bool {
        matches!(self, Self::Recv | Self::Both)
    }

    /// These and the others.
    pub(crate) const fn and(self, others: Self) -> Self {
        match (self, others) {
            (Self::Send, Self::Send) => Self::Send,
            (Self::Recv, Self::Recv) => Self::Recv,
            _ => Self::Both,
        }
    }
}

/// One row of a backend's table: a symmetric kernel and what it serves.
#[derive(Clone, Debug)]
pub struct PathRule {
    /// The operation.
    pub op: OpKind,
    /// Element types served.
    pub dtypes: &'static [DType],
    /// Codes of the reductions served (see [`ReduceOp::code`]); empty means the operation does not
    /// reduce.
    pub reductions: &'static [u8],
    /// World sizes served.
    pub world: RangeInclusive<usize>,
    /// Bytes of the larger operand served.
    pub bytes: RangeInclusive<usize>,
    /// Operands that must lie in windows.
    pub needs: Sides,
    /// From how many bytes copying through scratch pays for an eager call.
    pub stage_from: usize,
    /// The same inside a captured graph.
    pub stage_from_captured: usize,
    /// The kernel's name.
    pub kernel: &'static str,
    /// Whether the backend makes the library use this kernel.
    pub forced: bool,
}

impl PathRule {
    fn serves(&self, call: &Collective<'_>, bytes: usize, world_size: usize) -> bool {
        self.op == call.kind()
            && self.dtypes.contains(&call.dtype)
            && match call.reduction().map(ReduceOp::code) {
                Some(code) => self.reductions.contains(&code),
                None => self.reductions.is_empty(),
            }
            && self.world.contains(&world_size)
            && self.bytes.contains(&bytes)
    }
}

/// Every symmetric kernel a backend has, as data; the first row that serves a call is used.
#[derive(Clone, Debug, Default)]
pub struct PathTable(pub Vec<PathRule>);

impl PathTable {
    /// The first rule that serves this call.
    ///
    /// # Errors
    ///
    /// The reason why there is none.
    pub fn rule(
        &self,
        call: &Collective<'_>,
        rank: Rank,
        world_size: usize,
    ) -> Result<&PathRule, Reason> {
        let bytes = largest_operand_bytes(call, rank, world_size);
        self.0
            .iter()
            .find(|rule| rule.serves(call, bytes, world_size))
            .ok_or_else(|| {
                if self.0.iter().any(|rule| rule.op == call.kind()) {
                    Reason::NoKernelForType
                } else {
                    Reason::NoKernelForOperation
                }
            })
    }
}

/// Bytes of the larger operand, which for the operations with symmetric kernels is equal on all
/// ranks.
#[must_use]
pub fn largest_operand_bytes(call: &Collective<'_>, rank: Rank, world_size: usize) -> usize {
    call.elements(rank, world_size)
        .map_or(0, |(send, recv)| send.max(recv) * call.dtype.size())
}
