//! Windows: what may be registered, how peers are reached, and ranks that disagree.

use collectives_alloc::checked::Checked;
use collectives_core::addr::{Operand, WindowSlice};
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::error::{ErrorKind, Misuse, Result};
use collectives_core::layered::symmetric_of;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::submission::Submission;

use crate::rank::Ctx;
use crate::values::same;
use crate::{Outcome, Said, ensure};

const MIB: usize = 1 << 20;

fn fill(ctx: &Ctx, operand: Operand, value: u8) -> Outcome {
    let bytes = vec![value; operand.bytes];
    // SAFETY: The operand lies in memory of this device that only this case uses.
    unsafe { ctx.device.write(operand.addr, &bytes, &ctx.stream) }.said("write")
}

fn contents(ctx: &Ctx, operand: Operand) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; operand.bytes];
    // SAFETY: As in `fill`; what is read may be another rank's, which has written it.
    unsafe { ctx.device.read(&mut bytes, operand.addr, &ctx.stream) }.said("read")?;
    Ok(bytes)
}

pub(crate) fn peers(ctx: &mut Ctx) -> Outcome {
    let mut comm = ctx.connect()?;
    let (memory, window) = {
        let symmetric = symmetric_of(&mut comm).said("symmetric")?;
        let memory = symmetric.allocate(2 * MIB, None).said("allocate")?;
        let window = symmetric.register(&memory).said("register")?;
        (memory, window)
    };
    if ctx.ranks > 1 {
        let own = u8::try_from(ctx.rank + 1).unwrap_or(0);
        fill(ctx, Operand::new(memory.addr(), 4096), own)?;
        ctx.meet(&format!("filled {}", ctx.ranks))?;
        for rank in 0..ctx.ranks {
            let symmetric = symmetric_of(&mut comm).said("symmetric")?;
            let peer = symmetric
                .peer_address(window, Rank::new(rank), 64)
                .said("peer_address")?;
            let theirs = u8::try_from(rank + 1).unwrap_or(0);
            let found = contents(ctx, Operand::new(peer, 512))?;
            same(&format!("rank {rank}'s part"), &found, &[theirs; 512])?;
        }
        let symmetric = symmetric_of(&mut comm).said("symmetric")?;
        let beyond = symmetric.peer_address(window, Rank(0), 3 * MIB);
        ensure(beyond.is_err(), || "an offset beyond the window".to_owned())?;
        ctx.meet(&format!("read {}", ctx.ranks))?;
    }
    let _ = comm.shutdown().said("shutdown")?;
    Ok(())
}

pub(crate) fn extended(ctx: &mut Ctx) -> Outcome {
    let mut comm = ctx.connect()?;
    let mut windows = Vec::new();
    for generation in 0..3 {
        let bytes = (2 << generation) * MIB;
        let extend = windows.last().map(|(_, window)| *window);
        let symmetric = symmetric_of(&mut comm).said("symmetric")?;
        let memory = symmetric.allocate(bytes, extend).said("allocate")?;
        let window = symmetric.register(&memory).said("register")?;
        windows.push((memory, window));
    }
    let first = Operand::new(windows[0].0.addr(), 8192);
    let last = Operand::new(windows[2].0.addr(), 8192);
    ensure(first.addr != last.addr, || {
        "one address range twice".to_owned()
    })?;
    fill(ctx, first, 9)?;
    same("the bytes", &contents(ctx, last)?, &[9; 8192])?;
    // A sum over the oldest window shows in the newest.
    fill(ctx, last, 0)?;
    let operand = |index: usize| {
        Operand::new(windows[index].0.addr(), 4 * 512).in_window(WindowSlice {
            comm: comm.info().id,
            window: windows[index].1,
            offset: 0,
        })
    };
    let ones: Vec<_> = std::iter::repeat_n(1.0_f32.to_le_bytes(), 512)
        .flatten()
        .collect();
    // SAFETY: The window is this case's own.
    unsafe { ctx.device.write(first.addr, &ones, &ctx.stream) }.said("write")?;
    let call = Collective {
        op: Op::AllReduce(ReduceOp::Sum),
        dtype: DType::F32,
        send: operand(0),
        recv: operand(0),
        counts: Counts::Even(512),
    };
    let calls = [call];
    let submission = Submission::checked(&mut comm, &calls, &ctx.stream).said("check")?;
    // SAFETY: The call was checked, and its operands lie in a window at equal offsets on all ranks.
    unsafe { comm.enqueue(&submission) }.said("enqueue")?;
    let sum = f32::from(u8::try_from(ctx.ranks).unwrap_or(0)).to_le_bytes();
    let found = contents(ctx, Operand::new(last.addr, 4))?;
    same("the sum through the newest window", &found, &sum)?;
    ctx.sync()?;
    let _ = comm.shutdown().said("shutdown")?;
    Ok(())
}

pub(crate) fn refused(ctx: &mut Ctx) -> Outcome {
    let mut comm = ctx.connect()?;
    let odd = ctx.rank == ctx.ranks - 1;
    let ordinary = ctx.device.allocate(2 * MIB).said("allocate")?;
    let symmetric = symmetric_of(&mut comm).said("symmetric")?;
    let memory = symmetric.allocate(2 * MIB, None).said("allocate")?;
    // One rank passes memory that NCCL would fail on half way.
    let error = symmetric.register(if odd { &ordinary } else { &memory });
    let misuse = error.err().and_then(|error| error.misuse().cloned());
    let not_registrable = matches!(misuse, Some(Misuse::NotRegistrable { .. }));
    ensure(not_registrable, || format!("ordinary memory: {misuse:?}"))?;
    if ctx.ranks > 1 {
        let larger = symmetric.allocate(4 * MIB, None).said("allocate")?;
        let error = symmetric
            .register(if odd { &larger } else { &memory })
            .err();
        let mismatch = error.is_some_and(|e| matches!(e.kind(), ErrorKind::Mismatch { .. }));
        ensure(mismatch, || "different sizes were not found".to_owned())?;
    }
    let window = symmetric.register(&memory).said("register")?;
    let again = symmetric.register(&memory).err();
    let misuse = again.and_then(|error| error.misuse().cloned());
    ensure(misuse == Some(Misuse::AlreadyRegistered), || {
        format!("twice: {misuse:?}")
    })?;
    symmetric.retire(window).said("retire")?;
    let misuse = symmetric
        .retire(window)
        .err()
        .and_then(|error| error.misuse().cloned());
    ensure(misuse == Some(Misuse::UnknownWindow), || {
        format!("retired twice: {misuse:?}")
    })?;
    ensure(symmetric.window_count() == 0, || {
        "windows are left".to_owned()
    })?;
    // All of it left the communicator as it was.
    let mut handle = Collectives::without_scratch(comm);
    handle.barrier(&ctx.stream).said("barrier")?;
    ctx.sync()?;
    let _ = handle.close().said("close")?;
    Ok(())
}

pub(crate) fn mismatch(ctx: &mut Ctx) -> Outcome {
    if ctx.ranks == 1 {
        return Ok(());
    }
    let comm = ctx.connect()?;
    let mut comm = Checked::default().around(comm);
    let mut windows = Vec::new();
    for _ in 0..2 {
        let symmetric = symmetric_of(&mut comm).said("symmetric")?;
        let memory = symmetric.allocate(2 * MIB, None).said("allocate")?;
        let window = symmetric.register(&memory).said("register")?;
        windows.push((memory, window));
    }
    let chosen = usize::from(ctx.rank == 0);
    let operand = Operand::new(windows[chosen].0.addr(), 4096).in_window(WindowSlice {
        comm: comm.info().id,
        window: windows[chosen].1,
        offset: 0,
    });
    let call = Collective {
        op: Op::AllReduce(ReduceOp::Sum),
        dtype: DType::F32,
        send: operand,
        recv: operand,
        counts: Counts::Even(1024),
    };
    let calls = [call];
    let submission = Submission::checked(&mut comm, &calls, &ctx.stream).said("check")?;
    // SAFETY: The call was checked, and its operands are valid; that they differ between ranks is what must
    // be caught.
    let error = unsafe { comm.enqueue(&submission) }.err();
    let found = error.as_ref().map(|error| error.kind().clone());
    ensure(matches!(found, Some(ErrorKind::Mismatch { .. })), || {
        format!("{found:?}")
    })?;
    let _ = comm.shutdown().said("shutdown")?;
    Ok(())
}
