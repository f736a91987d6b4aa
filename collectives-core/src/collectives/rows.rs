//! A backend's table as calls are compared with it: the rows that serve this world, packed.
//!
//! A call looks its row up between two calls of a library that has filled the caches with what is
//! its, so what is looked at is one cache line a row, with the element types and reductions it serves as
//! bits in it. What only tensors in ordinary memory are asked for is behind it.

use super::calibration::Calibration;
use crate::collective::{Collective, OpKind};
use crate::dtype::DType;
use crate::path::{Kernel, PathRule, PathTable, Reason, Sides};
use crate::reduce::ReduceOp;
use crate::submission::KernelChoice;

/// The rows of a table that serve one world size, in the table's order.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    rows: Box<[Row]>,
    /// Operations that the table has a row for, whatever the world size.
    known: u32,
}

/// One row.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Row {
    op: OpKind,
    pub(super) needs: Sides,
    forced: bool,
    dtypes: u32,
    reductions: u32,
    least: usize,
    most: usize,
    kernel: &'static str,
    /// By the element types that are calculated with alike.
    eager: [Sizes; 2],
    captured: [Sizes; 2],
}

const _: () = assert!(size_of::<Row>() == 192);

/// At which sizes staging pays, in bytes.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Up to which size the next two were measured; zero if nothing was.
    measured: usize,
    from: usize,
    below: usize,
    /// From where on it pays beyond that, by the table.
    table: usize,
}

impl Sizes {
    const fn by_table(from: usize) -> Self {
        Self {
            measured: 0,
            from: 0,
            below: 0,
            table: from,
        }
    }

    #[inline]
    const fn contain(&self, bytes: usize) -> bool {
        match bytes <= self.measured {
            true => self.from <= bytes && bytes < self.below,
            false => self.table <= bytes,
        }
    }
}

/// The element types that a calibration measures, each for those that are calculated with alike: as
/// they are, and [widened](is_widened).
pub(super) const MEASURED: [DType; 2] = [DType::F32, DType::Bf16];

/// Whether kernels calculate with a wider type than they load, which takes them longer and ordinary ones
/// otherwise than symmetric ones.
#[inline]
const fn is_widened(dtype: DType) -> bool {
    dtype.is_float() && dtype.size() <= 2
}

/// The bit of an operation that does not reduce.
const NO_REDUCTION: u32 = 1 << 31;

const fn op_bit(op: OpKind) -> u32 {
    1 << op as u32
}

const fn dtype_bit(dtype: DType) -> u32 {
    1 << dtype as u32
}

#[inline]
fn reduction_bit(reduction: Option<ReduceOp>) -> u32 {
    reduction.map_or(NO_REDUCTION, |op| 1 << op.code())
}

impl Rows {
    pub(super) fn of(table: &PathTable, world_size: usize) -> Self {
        let serving = table
            .0
            .iter()
            .filter(|rule| rule.world.contains(&world_size));
        let known = table.0.iter().map(|rule| op_bit(rule.op));
        Self {
            rows: serving.map(Row::of).collect(),
            known: known.fold(0, |all, bit| all | bit),
        }
    }

    /// Goes by what was measured at the sizes that were, for every row of an operation.
    pub(super) fn calibrate(&mut self, calibration: &Calibration) {
        for row in &mut self.rows {
            for (captured, sizes) in [(false, &mut row.eager), (true, &mut row.captured)] {
                for (sizes, dtype) in sizes.iter_mut().zip(MEASURED) {
                    let staged = calibration.staged(row.op, dtype, captured);
                    // What calculates nothing is measured once.
                    let staged =
                        staged.or_else(|| calibration.staged(row.op, MEASURED[0], captured));
                    if let Some(staged) = staged {
                        (sizes.from, sizes.below) = (staged.sizes.start, staged.sizes.end);
                        sizes.measured = staged.measured;
                    }
                }
            }
        }
    }

    /// The first row that serves a call whose operands were checked, as [`PathTable::rule`] finds it.
    #[inline(always)]
    pub(super) fn find(&self, call: &Collective<'_>) -> Result<&Row, Reason> {
        // Operands that were checked are as long as the counts say.
        self.serving(call, call.send.bytes.max(call.recv.bytes))
    }

    /// The first row that serves such a call with a larger operand of this many bytes.
    #[inline(always)]
    pub(super) fn serving(&self, call: &Collective<'_>, bytes: usize) -> Result<&Row, Reason> {
        let (op, dtype) = (call.kind(), dtype_bit(call.dtype));
        let reduction = reduction_bit(call.reduction());
        let serves = |row: &&Row| {
            row.op == op
                && row.dtypes & dtype != 0
                && row.reductions & reduction != 0
                && (row.least..=row.most).contains(&bytes)
        };
        self.rows.iter().find(serves).ok_or_else(|| {
            if self.known & op_bit(op) == 0 {
                Reason::NoKernelForOperation
            } else {
                Reason::NoKernelForType
            }
        })
    }
}

impl Row {
    fn of(rule: &PathRule) -> Self {
        let reductions = rule.reductions.iter().map(|&code| 1_u32 << code);
        let reductions = match rule.reductions.is_empty() {
            true => NO_REDUCTION,
            false => reductions.fold(0, |all, bit| all | bit),
        };
        let dtypes = rule.dtypes.iter().map(|&dtype| dtype_bit(dtype));
        Self {
            op: rule.op,
            needs: rule.needs,
            forced: rule.forced,
            dtypes: dtypes.fold(0, |all, bit| all | bit),
            reductions,
            least: *rule.bytes.start(),
            most: *rule.bytes.end(),
            kernel: rule.kernel,
            eager: [Sizes::by_table(rule.stage_from); 2],
            captured: [Sizes::by_table(rule.stage_from_captured); 2],
        }
    }

    /// Whether copying a call through scratch pays.
    #[inline]
    pub(super) fn pays(&self, call: &Collective<'_>, captured: bool) -> bool {
        let sizes = match captured {
            true => &self.captured,
            false => &self.eager,
        };
        let sizes = &sizes[usize::from(is_widened(call.dtype))];
        sizes.contain(call.send.bytes.max(call.recv.bytes))
    }

    /// The kernel as a report names it, where the backend is told what to use.
    #[inline]
    pub(super) const fn kernel(&self, choice: KernelChoice) -> Kernel {
        match choice {
            KernelChoice::Any if !self.forced => Kernel::Predicted(self.kernel),
            _ => Kernel::Forced(self.kernel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Addr, Operand};
    use crate::collective::{Counts, Op};
    use crate::rank::Rank;

    fn table() -> PathTable {
        let rule = |op, dtypes, reductions, world, bytes, needs| PathRule {
            op,
            dtypes,
            reductions,
            world,
            bytes,
            needs,
            stage_from: 64,
            stage_from_captured: 32,
            kernel: "k",
            forced: false,
        };
        const FLOATS: &[DType] = &[DType::F32, DType::F16];
        PathTable(vec![
            rule(OpKind::AllReduce, FLOATS, &[0], 2..=3, 1..=255, Sides::Both),
            rule(
                OpKind::AllReduce,
                FLOATS,
                &[0, 4],
                2..=3,
                256..=4096,
                Sides::Send,
            ),
            rule(
                OpKind::AllGather,
                &DType::ALL,
                &[],
                2..=8,
                1..=4096,
                Sides::Recv,
            ),
            rule(
                OpKind::ReduceScatter,
                FLOATS,
                &[0, 5],
                4..=8,
                0..=4096,
                Sides::Send,
            ),
        ])
    }

    #[test]
    fn packed_rows_say_what_the_table_says() {
        let table = table();
        let scalar = ReduceOp::PreMulSum(crate::reduce::Scalar::new(1.0_f32));
        let reductions = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Average, scalar];
        let reducing = reductions.into_iter().flat_map(|op| {
            let root = Rank(0);
            [
                Op::AllReduce(op),
                Op::ReduceScatter(op),
                Op::Reduce { op, root },
            ]
        });
        let plain = [Op::AllGather, Op::Barrier, Op::Broadcast { root: Rank(1) }];
        let mut served = 0;
        for op in reducing.chain(plain) {
            for dtype in DType::ALL {
                for (count, world_size) in [1, 15, 16, 63, 64, 300, 5000]
                    .into_iter()
                    .flat_map(|count| (1..=9).map(move |world_size| (count, world_size)))
                {
                    let mut call = Collective {
                        op,
                        dtype,
                        send: Operand::EMPTY,
                        recv: Operand::EMPTY,
                        counts: Counts::Even(count),
                    };
                    let (send, recv) = call.elements(Rank(0), world_size).unwrap();
                    let operand = |elements| Operand::new(Addr::NULL, elements * dtype.size());
                    (call.send, call.recv) = (operand(send), operand(recv));
                    let rule = table.rule(&call, Rank(0), world_size);
                    let rows = Rows::of(&table, world_size);
                    let row = rows.find(&call);
                    served += usize::from(rule.is_ok());
                    assert_eq!(
                        row.map(|row| (row.needs, row.least, row.most)),
                        rule.map(|rule| (rule.needs, *rule.bytes.start(), *rule.bytes.end())),
                        "{call:?} in a world of {world_size}"
                    );
                }
            }
        }
        assert!(served > 100, "{served}");
    }
}
