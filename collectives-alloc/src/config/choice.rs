//! The names configuration uses for the rules of a pool.

use crate::options::{DomainMode, OnMiss, Ordering, Seal};

/// A value out of a few, each with a name.
pub(crate) trait Choice: Copy + 'static {
    /// All of them, in the order error texts list them.
    const ALL: &'static [Self];

    /// The name.
    fn name(self) -> &'static str;

    /// The one with this name.
    fn named(text: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|choice| choice.name() == text)
    }

    /// Every name.
    fn names() -> Vec<&'static str> {
        Self::ALL.iter().map(|choice| choice.name()).collect()
    }
}

impl Choice for Seal {
    const ALL: &'static [Self] = &[Self::Never, Self::Explicit, Self::AfterReserve];

    fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Explicit => "explicit",
            Self::AfterReserve => "after-reserve",
        }
    }
}

impl Choice for OnMiss {
    const ALL: &'static [Self] = &[Self::Error, Self::Fallback];

    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Fallback => "fallback",
        }
    }
}

impl Choice for DomainMode {
    const ALL: &'static [Self] = &[Self::Shared, Self::Stream, Self::Graph];

    fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Stream => "stream",
            Self::Graph => "graph",
        }
    }
}

impl Choice for Ordering {
    const ALL: &'static [Self] = &[Self::Events, Self::Caller];

    fn name(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Caller => "caller",
        }
    }
}

impl Choice for bool {
    const ALL: &'static [Self] = &[true, false];

    fn name(self) -> &'static str {
        if self { "true" } else { "false" }
    }
}
