//! The layout of windows in one flat space that each rank works out alone, as NCCL does.
//!
//! Only the multicast of the device model reads through it: it takes this rank's offset of a window
//! and trusts that the peer has the same window there.

use collectives_core::addr::{Addr, WindowId};

use crate::fabric::{Fabric, lock};
use crate::post::Side;

/// Where one rank's windows lie in its flat space, in the order of their offsets.
#[derive(Debug, Default)]
pub(crate) struct FlatTable(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    window: WindowId,
    start: usize,
    bytes: usize,
    base: Addr,
}

impl FlatTable {
    /// Puts a window at the first gap that holds it.
    pub(crate) fn insert(&mut self, window: WindowId, base: Addr, bytes: usize) {
        let (mut position, mut start) = (0, 0);
        for entry in &self.0 {
            if entry.start - start >= bytes {
                break;
            }
            start = entry.start + entry.bytes;
            position += 1;
        }
        self.0.insert(
            position,
            Entry {
                window,
                start,
                bytes,
                base,
            },
        );
    }

    pub(crate) fn remove(&mut self, window: WindowId) {
        self.0.retain(|entry| entry.window != window);
    }

    fn start_of(&self, window: WindowId) -> Option<usize> {
        let entry = self.0.iter().find(|entry| entry.window == window)?;
        Some(entry.start)
    }

    fn address(&self, flat: usize) -> Option<Addr> {
        let after = self.0.partition_point(|entry| entry.start <= flat);
        let entry = &self.0[after.checked_sub(1)?];
        Some(entry.base.offset(flat - entry.start))
    }
}

/// Where `me` reads `peer`'s part of its own operand `mine`; if the peer has nothing there, `mine`.
pub(crate) fn address(fabric: &Fabric, me: usize, peer: usize, mine: Side) -> *const u8 {
    let window = WindowId(mine.window - 1);
    let flat = lock(&fabric.flat[me]).start_of(window);
    let theirs = flat.and_then(|start| lock(&fabric.flat[peer]).address(start + mine.offset));
    theirs.map_or(mine.addr, Addr::as_ptr).cast_const()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_gap_that_holds_a_window_is_taken() {
        let mut table = FlatTable::default();
        for (ordinal, bytes) in [(0_u8, 10), (1, 20), (2, 10)] {
            table.insert(
                WindowId(u64::from(ordinal)),
                Addr::NULL.offset(usize::from(ordinal) * 100),
                bytes,
            );
        }
        assert_eq!(table.start_of(WindowId(2)), Some(30));
        table.remove(WindowId(1));
        table.insert(WindowId(3), Addr::NULL.offset(1000), 15);
        table.insert(WindowId(4), Addr::NULL.offset(2000), 10);
        assert_eq!(table.start_of(WindowId(3)), Some(10));
        assert_eq!(table.start_of(WindowId(4)), Some(40));
        assert_eq!(table.address(12), Some(Addr::NULL.offset(1002)));
    }
}
