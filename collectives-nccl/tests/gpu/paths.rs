//! Which kernels really run, read from captured graphs.

use std::sync::Arc;

use collectives_core::addr::{Operand, WindowId, WindowSlice};
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::memory::Memory;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::symmetric::SymmetricMemory;
use collectives_nccl::communicator::NcclCommunicator;
use collectives_nccl::options::Algorithm;

use crate::rank::Ctx;
use crate::{Outcome, Said, ensure};

/// Memory in a window, and ordinary memory, both this long.
struct Sides {
    window: WindowSlice,
    inside: Memory,
    outside: Memory,
}

const BYTES: usize = 256 << 20;

fn symmetric(comm: &mut NcclCommunicator) -> Result<&mut dyn SymmetricMemory, String> {
    let why = format!("{:?}", comm.capabilities().symmetric);
    comm.symmetric().ok_or(why)
}

fn sides(ctx: &Ctx, comm: &mut NcclCommunicator) -> Result<Sides, String> {
    let memory = symmetric(comm)?.allocate(BYTES, None).said("allocate")?;
    let window: WindowId = symmetric(comm)?.register(&memory).said("register")?;
    Ok(Sides {
        window: WindowSlice {
            comm: comm.info().id,
            window,
            offset: 0,
        },
        inside: memory,
        outside: ctx.device.allocate(BYTES).said("allocate")?,
    })
}

impl Sides {
    /// An operand at an offset, inside or outside.
    fn at(&self, inside: bool, offset: usize, bytes: usize) -> Operand {
        let memory = if inside { &self.inside } else { &self.outside };
        let operand = Operand::new(memory.addr().offset(offset), bytes);
        match inside {
            true => operand.in_window(self.window.advance(offset)),
            false => operand,
        }
    }

    fn call(
        &self,
        ranks: usize,
        op: Op<'static>,
        dtype: DType,
        count: usize,
        inside: (bool, bool),
    ) -> Collective<'static> {
        let one = count * dtype.size();
        let (send, recv) = match op {
            Op::ReduceScatter(_) => (one * ranks, one),
            Op::AllGather => (one, one * ranks),
            _ => (one, one),
        };
        Collective {
            op,
            dtype,
            send: self.at(inside.0, 0, send),
            recv: self.at(inside.1, BYTES / 2, recv),
            counts: Counts::Even(count),
        }
    }
}

/// The kernels of a call, in one line.
fn names(comm: &mut NcclCommunicator, call: Collective<'_>) -> Result<String, String> {
    // SAFETY: The operands are allocated for longer than the communicator lives.
    let names = unsafe { comm.verify_paths(&[call]) }.said(call.kind().name())?;
    Ok(names.concat().join("+"))
}

const SUM: ReduceOp = ReduceOp::Sum;

/// Says, on rank 0, which kernel serves which size, with the sides in windows that are named.
pub(crate) fn sweep(ctx: &mut Ctx) -> Outcome {
    if ctx.ranks == 1 {
        return Ok(());
    }
    let mut comm = ctx.connect()?;
    let sides = sides(ctx, &mut comm)?;
    for (op, inside) in [
        (Op::AllReduce(SUM), (true, true)),
        (Op::ReduceScatter(SUM), (true, false)),
        (Op::ReduceScatter(SUM), (true, true)),
        (Op::AllGather, (false, true)),
        (Op::AllGather, (true, true)),
    ] {
        let mut line = format!(
            "{} ranks, {op:?}, send and recv in a window {inside:?}:",
            ctx.ranks
        );
        let mut last = String::new();
        for power in 4..25 {
            let call = sides.call(ctx.ranks, op, DType::F32, (1 << power) / 4, inside);
            let found = names(&mut comm, call)?;
            if found != last {
                line.push_str(&format!(
                    " {} B {found}",
                    call.send.bytes.max(call.recv.bytes)
                ));
                last = found;
            }
        }
        if ctx.rank == 0 {
            println!("SWEEP {line}");
        }
    }
    drop(sides);
    let _ = comm.shutdown().said("shutdown")?;
    Ok(())
}

pub(crate) fn kernels(ctx: &mut Ctx) -> Outcome {
    if ctx.ranks == 1 {
        return Ok(());
    }
    let mut comm = ctx.connect()?;
    let sides = sides(ctx, &mut comm)?;
    let n = ctx.ranks;
    let inside = (true, true);
    let symmetric = [Op::AllReduce(SUM), Op::ReduceScatter(SUM), Op::AllGather];
    let mut wrong = Vec::new();
    let mut check =
        |comm: &mut NcclCommunicator, call: Collective<'static>, prefix: &str| match names(
            comm, call,
        ) {
            Ok(found) if found.starts_with(prefix) => {}
            Ok(found) => wrong.push(format!(
                "{} {} {:?}: {found}, not {prefix}",
                call.kind(),
                call.dtype,
                call.reduction()
            )),
            Err(words) => wrong.push(words),
        };
    for op in symmetric {
        for dtype in [
            DType::F32,
            DType::F16,
            DType::Bf16,
            DType::F8E4M3,
            DType::F8E5M2,
        ] {
            for count in [64, 1 << 20] {
                // No more sides lie in windows than the table says the kernel needs.
                let call = sides.call(n, op, dtype, count, inside);
                let table = &comm.capabilities().paths;
                let rule = table.rule(&call, Rank::new(ctx.rank), n);
                let needs = rule.map_err(|reason| reason.to_string())?.needs;
                let call = sides.call(n, op, dtype, count, (needs.send(), needs.recv()));
                check(&mut comm, call, "ncclSymkDevKernel_");
                // The negative control: the same on ordinary memory.
                let call = sides.call(n, op, dtype, count, (false, false));
                check(&mut comm, call, "ncclDevKernel_");
            }
        }
    }
    let one = |op, dtype, inside| sides.call(n, op, dtype, 1 << 20, inside);
    let average = Op::ReduceScatter(ReduceOp::Average);
    check(
        &mut comm,
        one(average, DType::Bf16, (true, false)),
        "ncclSymkDevKernel_",
    );
    check(
        &mut comm,
        one(Op::AllGather, DType::I64, (false, true)),
        "ncclSymkDevKernel_",
    );
    check(
        &mut comm,
        one(Op::AllReduce(ReduceOp::Average), DType::F32, inside),
        "ncclSymkDevKernel_AllReduce",
    );
    for (op, dtype) in [
        (Op::AllReduce(SUM), DType::F64),
        (Op::AllReduce(SUM), DType::I32),
        (Op::AllReduce(ReduceOp::Max), DType::F32),
        (Op::ReduceScatter(SUM), DType::I64),
        (Op::ReduceScatter(ReduceOp::Max), DType::F32),
        (Op::Broadcast { root: Rank(0) }, DType::F32),
    ] {
        let mut call = one(op, dtype, inside);
        if matches!(op, Op::Broadcast { .. }) && ctx.rank != 0 {
            call.send = Operand::EMPTY;
        }
        check(&mut comm, call, "ncclDevKernel_");
    }
    check(
        &mut comm,
        one(Op::AllGather, DType::F32, (true, false)),
        "ncclDevKernel_",
    );
    drop(sides);
    let _ = comm.shutdown().said("shutdown")?;
    ensure(wrong.is_empty(), || wrong.join("; "))
}

pub(crate) fn selection(ctx: &mut Ctx) -> Outcome {
    if ctx.ranks == 1 {
        return Ok(());
    }
    let cases = [
        (Algorithm::OneShot, "AllReduce_AGxLL_R"),
        (Algorithm::TwoShot, "AllReduce_RSxLD_AGxST"),
        (Algorithm::Symmetric, "AllReduce"),
    ];
    let version = collectives_nccl::setup::library_version().said("version")?;
    for (algorithm, kernel) in cases {
        let mut options = Ctx::options();
        options.algorithm = algorithm;
        let world = ctx.world()?;
        let made = NcclCommunicator::connect(world, Arc::clone(&ctx.cuda), options);
        if version.code() < 23_102 {
            let refused = made.is_err_and(|error| error.to_string().contains("cannot be told"));
            ensure(refused, || format!("{algorithm:?} was not refused"))?;
            continue;
        }
        let mut comm = made.said("connect")?;
        let sides = sides(ctx, &mut comm)?;
        for count in [16, 1 << 20] {
            let call = sides.call(
                ctx.ranks,
                Op::AllReduce(SUM),
                DType::F32,
                count,
                (true, true),
            );
            let found = names(&mut comm, call)?;
            let expected = format!("ncclSymkDevKernel_{kernel}");
            ensure(found.starts_with(&expected), || {
                format!("{algorithm:?} x {count}: {found}, not {expected}")
            })?;
        }
        drop(sides);
        let _ = comm.shutdown().said("shutdown")?;
    }
    Ok(())
}
