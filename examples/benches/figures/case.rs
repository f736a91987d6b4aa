//! One collective to measure, and how.

use std::fmt;

use collectives_alloc::bytes::ByteSize;
use collectives_core::collective::OpKind;
use collectives_core::dtype::DType;

/// A collective among a number of ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Case {
    pub(crate) operation: OpKind,
    pub(crate) dtype: DType,
    /// Bytes of the larger operand of a rank.
    pub(crate) bytes: usize,
    pub(crate) ranks: usize,
}

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Operations that are timed together, each on operands of its own.
    pub(crate) operations: usize,
    /// Measurements.
    pub(crate) batches: usize,
    /// Runs before, which are not counted.
    pub(crate) warm_up: usize,
}

/// Bytes that the operands of one batch may take, so that they stay in the second-level cache.
const BATCH_BYTES: usize = 256 << 10;

impl Case {
    /// A single operation takes some 50 ns at 8 bytes and 10 ms at 128 MiB.
    pub(crate) fn shape(&self, quick: bool) -> Shape {
        let limit = if self.bytes <= 64 { 128 } else { 32 };
        let batches: usize = match self.bytes {
            0..0x1_0000 => 400,
            0x1_0000..0x100_0000 => 200,
            0x100_0000..0x400_0000 => 31,
            _ => 9,
        };
        Shape {
            operations: (BATCH_BYTES / self.bytes.max(1)).clamp(1, limit),
            batches: if quick { batches.div_ceil(4) } else { batches },
            warm_up: if self.bytes < 16 << 20 { 10 } else { 1 },
        }
    }

    /// Bytes from the operands of one operation to those of the next.
    pub(crate) const fn stride(&self) -> usize {
        self.bytes.next_multiple_of(64)
    }

    pub(crate) const fn elements(&self) -> usize {
        self.bytes / self.dtype.size()
    }

    /// What the tables and the peers call it.
    pub(crate) fn label(&self) -> String {
        ByteSize::new(self.bytes).to_string()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            dtype,
            ranks,
            ..
        } = self;
        match operation {
            OpKind::Barrier => write!(f, "{operation}, {ranks} ranks"),
            _ => write!(f, "{operation}, {dtype}, {ranks} ranks, {}", self.label()),
        }
    }
}
