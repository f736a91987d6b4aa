//! Groups: what members may not have in common.

use std::ops::Range;

use collectives_core::buffer::Buffer;
use collectives_core::collectives::Group;
use collectives_core::error::{Misuse, Result};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use rstest::rstest;

use crate::{all, device};

/// What a member does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Reads,
    Writes,
    ReadsAndWrites,
}

impl Use {
    /// A member that uses the range so: a message with the other rank, or a sum.
    fn add(self, group: &mut Group<'_>, range: &Buffer<u32>, peer: Rank) -> Result<()> {
        let mut range = range.clone();
        let _group = match self {
            Self::Reads => group.send(&range, peer)?,
            Self::Writes => group.recv(&mut range, peer)?,
            Self::ReadsAndWrites => group.all_reduce(&mut range, ReduceOp::Sum)?,
        };
        Ok(())
    }
}

const USES: [Use; 3] = [Use::Reads, Use::Writes, Use::ReadsAndWrites];

/// Pairs of ranges of a tensor of 12 elements that share one.
const RANGES: [[Range<usize>; 2]; 4] = [[0..8, 4..12], [4..12, 0..8], [0..12, 5..6], [5..6, 0..12]];

#[rstest]
fn a_member_that_writes_what_another_uses_is_refused_in_any_order(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, 2, |collectives, stream| {
        let device = device(collectives);
        let peer = Rank(1 - collectives.rank().0);
        let tensor = Buffer::<u32>::zeroed(&device, 12, stream)?;
        let mut other = Buffer::from_slice(&device, &[1_u32; 5], stream)?;
        for [earlier, later] in RANGES {
            for (first, second) in USES
                .into_iter()
                .flat_map(|use_| USES.map(|next| (use_, next)))
            {
                if (first, second) == (Use::Reads, Use::Reads) {
                    continue;
                }
                let added = |group: &mut Group<'_>| {
                    first.add(group, &tensor.slice(earlier.clone())?, peer)?;
                    // One in between that has nothing to do with either.
                    group.all_reduce(&mut other, ReduceOp::Max)?;
                    second.add(group, &tensor.slice(later.clone())?, peer)
                };
                let what = format!("{first:?} {earlier:?}, then {second:?} {later:?}");
                let refused = collectives.group(stream, added).unwrap_err();
                assert_eq!(refused.misuse(), Some(&Misuse::Overlap), "{what}");
                assert_eq!(refused.operation(), Some("group"), "{what}");
            }
        }
        // Nothing was enqueued, and what only touches is no overlap.
        let (low, high) = (tensor.slice(..6)?, tensor.slice(6..)?);
        let reports = collectives.group(stream, |group| {
            group.send(&low, peer)?;
            group.recv(&mut high.clone(), peer)?;
            Ok(())
        })?;
        assert_eq!(reports.len(), 2);
        assert_eq!(other.read(stream)?, [1; 5]);
        Ok(())
    });
}

#[rstest]
fn members_may_read_the_same(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 3, |collectives, stream| {
        let device = device(collectives);
        let rank = collectives.rank().0;
        let mine = Buffer::from_slice(&device, &[rank, 7], stream)?;
        let mut from = [0, 1, 2].map(|_| Buffer::<u32>::zeroed(&device, 2, stream).unwrap());
        collectives.group(stream, |group| {
            for peer in 0..3 {
                group.send(&mine, Rank(peer))?;
            }
            for (peer, recv) in (0..3).zip(&mut from) {
                group.recv(recv, Rank(peer))?;
            }
            Ok(())
        })?;
        for (peer, recv) in (0..3).zip(&from) {
            assert_eq!(recv.read(stream)?, [peer, 7]);
        }
        Ok(())
    });
}
