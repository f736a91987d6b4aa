//! One operation between its announcement and its end.

use std::time::Duration;

use collectives_core::collective::Collective;
use collectives_core::error::Result;
use collectives_core::rank::Rank;

use super::board::{self, Boards};
use super::letters::Letters;
use super::meeting;
use super::transport::Shared;
use crate::post::Post;

/// Inside an operation until it is dropped.
pub(super) struct Inside<'a> {
    pub(super) shared: &'a Shared,
    pub(super) number: u64,
}

impl<'a> Inside<'a> {
    /// Says on this rank's board what it is about to do, and keeps in `own` what it said.
    ///
    /// # Safety
    ///
    /// The operands are valid, unless the calls are captured.
    #[inline]
    pub(super) unsafe fn announce(
        &self,
        calls: &[Collective<'_>],
        is_captured: bool,
        own: &mut Post,
    ) -> Result<()> {
        let segment = &self.shared.segment;
        let board = segment.board(self.shared.me, self.number);
        let place = (Rank::new(self.shared.me), segment.ranks());
        let written = match calls {
            // SAFETY: By the caller; everybody has left the operation two before this one.
            [call] => unsafe { board::write(board, place, call, is_captured, own) },
            calls => board::write_group(board, place, calls, is_captured, own),
        };
        // The others must not wait for what this rank cannot say.
        written.inspect_err(|error| self.shared.health.fail(&error.to_string(), false))
    }

    /// Meets the other ranks over what was announced, of which this rank keeps `own`.
    #[inline]
    pub(super) fn meet(&self, letters: &mut Letters, own: &Post, deadline: Duration) -> Result<()> {
        meeting::meet(self.shared, letters, self.number, own, deadline)
    }

    /// What all ranks say, of whom this one said `own`.
    ///
    /// # Safety
    ///
    /// They have met, and the boards are dropped before this value.
    #[inline]
    pub(super) unsafe fn boards<'b>(&self, own: &'b Post) -> Boards<'b>
    where
        'a: 'b,
    {
        let (shared, number) = (self.shared, self.number);
        // SAFETY: By the caller.
        let boards = unsafe { Boards::read(&shared.segment, shared.me, number, own) };
        boards.make_ready_for_next(shared.me);
        boards
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        meeting::leave(self.shared, self.number);
    }
}
