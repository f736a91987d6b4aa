//! How the parameters of one layer, the unit of sharding, are cut among the ranks.

use std::ops::Range;

use crate::options::Shards;

/// One unit's shards: `counts[r]` elements for rank `r`, in rank order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Parameters, without padding.
    pub(crate) parameters: usize,
    pub(crate) counts: Vec<usize>,
}

impl Layout {
    pub(crate) fn new(parameters: usize, ranks: usize, shards: Shards) -> Self {
        let chunk = parameters.div_ceil(ranks);
        let counts = match shards {
            Shards::Padded => vec![chunk; ranks],
            Shards::Uneven => (0..ranks)
                .map(|rank| chunk.min(parameters.saturating_sub(rank * chunk)))
                .collect(),
        };
        Self { parameters, counts }
    }

    /// Elements of all shards, padding included.
    pub(crate) fn total(&self) -> usize {
        self.counts.iter().sum()
    }

    /// The longest shard.
    pub(crate) fn largest(&self) -> usize {
        self.counts.iter().copied().max().unwrap_or(0)
    }

    /// Where a rank's shard lies among all of them.
    pub(crate) fn shard(&self, rank: usize) -> Range<usize> {
        let start = self.counts[..rank].iter().sum();
        start..start + self.counts[rank]
    }

    /// The part of a rank's shard that holds parameters.
    pub(crate) fn owned(&self, rank: usize) -> Range<usize> {
        let Range { start, end } = self.shard(rank);
        start.min(self.parameters)..end.min(self.parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_every_parameter_once() {
        for shards in [Shards::Uneven, Shards::Padded] {
            for (parameters, ranks) in [(258, 4), (1, 4), (12, 4), (5, 1), (9, 8), (10, 7)] {
                let layout = Layout::new(parameters, ranks, shards);
                let owned: Vec<_> = (0..ranks).flat_map(|rank| layout.owned(rank)).collect();
                assert_eq!(owned, (0..parameters).collect::<Vec<_>>(), "{layout:?}");
                assert_eq!(layout.shard(ranks - 1).end, layout.total());
            }
        }
    }

    #[test]
    fn only_padding_makes_shards_equal() {
        assert_eq!(Layout::new(10, 4, Shards::Uneven).counts, [3, 3, 3, 1]);
        assert_eq!(Layout::new(10, 4, Shards::Padded).counts, [3; 4]);
        assert_eq!(Layout::new(2, 4, Shards::Uneven).counts, [1, 1, 0, 0]);
    }
}
