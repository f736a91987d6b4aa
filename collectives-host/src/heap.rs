//! Memory that was freed and is handed out again first, to either kind.

use crate::block::{Block, Use};

/// Freed blocks of a heap, the latest last.
///
/// The latest that is large enough serves the next request, so where it lies was somebody else's a
/// moment ago, as with `malloc`.
#[derive(Debug, Default)]
pub(crate) struct Heap(Vec<Block>);

impl Heap {
    /// A zeroed block, or `None` when there is none.
    pub(crate) fn take(&mut self, wanted: Use) -> Option<Block> {
        match self.0.iter().rposition(|block| block.has_room(wanted)) {
            Some(position) => Some(self.0.remove(position).again(wanted)),
            None => Block::on_heap(wanted),
        }
    }

    /// Takes back a block without owners, which [`Heap::take`] made.
    pub(crate) fn give_back(&mut self, block: Block) {
        self.0.push(block);
    }

    /// Every freed block.
    pub(crate) fn into_blocks(self) -> Vec<Block> {
        self.0
    }
}
