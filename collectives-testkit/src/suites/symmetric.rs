//! Windows: one per range, in one order, at one offset, until they are retired.
#![forbid(unsafe_code)]

use collectives_core::addr::WindowId;
use collectives_core::error::{ErrorKind, Misuse, Refusal};
use collectives_core::layered::symmetric_of;
use collectives_core::path::Path;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::tensor::Tensor;

use crate::capability::Capability::{Abort, CountsMemory, Graphs, Symmetric};
use crate::case::{Case, Failure, Outcome, refused};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::witness::WindowEvent;
use crate::{ensure, ensure_eq};

/// The cases.
pub const CASES: &[Case] = &[
    Case::new("E1", "a window that is gone is refused for good", stale)
        .needs(&[Symmetric])
        .catches(Planted::StaleWindowAccepted),
    Case::new(
        "E4",
        "a range is registered once however often it is asked for",
        once,
    )
    .needs(&[Symmetric])
    .catches(Planted::DoubleRegisterAllowed),
    Case::new("E5", "parts of a window are offsets into it", offsets)
        .needs(&[Symmetric])
        .catches(Planted::WindowOffsetLost),
    Case::new(
        "E6",
        "ranges that overlap never have two windows",
        overlapping,
    )
    .needs(&[Symmetric])
    .catches(Planted::DoubleRegisterAllowed),
    Case::new(
        "E7",
        "any offset into a window gives the right result",
        any_offset,
    )
    .needs(&[Symmetric])
    .catches(Planted::OffsetRoundedDown),
    Case::new(
        "E11",
        "slices of a buffer in a window are zero copy",
        slices,
    )
    .needs(&[Symmetric])
    .catches(Planted::WindowsStripped),
    Case::new(
        "I7",
        "a buffer beyond the windows there may be is refused",
        bounded_buffers,
    )
    .needs(&[Symmetric])
    .catches(Planted::BuffersUnbounded),
    Case::new(
        "I37",
        "windows are registered in the same order everywhere",
        one_order,
    )
    .needs(&[Symmetric])
    .catches(Planted::WindowsNumberedLocally),
    Case::new(
        "I41",
        "every window is deregistered before its communicator goes",
        all_retired,
    )
    .needs(&[Symmetric])
    .catches(Planted::RetireForgotten),
    Case::new(
        "I42",
        "no window goes while a lease or a graph uses it",
        used_windows_stay,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::ReplaceWithoutClaims),
    Case::new(
        "F3",
        "aborting twice with live windows is clean",
        abort_with_windows,
    )
    .needs(&[Symmetric, Abort])
    .catches(Planted::AbortIgnored),
    Case::new(
        "F4",
        "after a shutdown no window and no byte is left",
        nothing_left,
    )
    .needs(&[Symmetric, CountsMemory])
    .catches(Planted::AllocationLeaks),
    Case::new(
        "I28",
        "a slot of a graph never backs a user's data",
        never_data,
    )
    .needs(&[Symmetric, Graphs])
    .catches(Planted::AllocatedTwice),
];

fn bounded_buffers(rig: &mut Rig<'_>) -> Outcome {
    let mut options = rig.options();
    options.max_windows = Some(2);
    let mut handle = rig.collectives_with("geometric", options)?;
    let first = handle.symmetric_buffer::<f32>(100)?;
    rig.eager(&mut handle, rig.granule(), rig.stream())?;
    let before = rig.witness().calls("allocate_symmetric");
    for _ in 0..2 {
        let error = refused("a third window", handle.symmetric_buffer::<f32>(100))?;
        let why = match error.kind() {
            ErrorKind::Refused { why, .. } => Some(*why),
            _ => None,
        };
        let (windows, limit) = (3, 2);
        let expected = Some(Refusal::OverWindows { windows, limit });
        ensure_eq!(why, expected, "why a buffer is refused, by: {error}");
        let text = error.to_string();
        ensure!(!text.contains("scratch"), "it speaks of scratch: {text}");
    }
    let allocations = rig.witness().calls("allocate_symmetric");
    ensure_eq!(allocations, before, "allocations so far");
    // One that goes makes room.
    drop(first);
    let _trimmed = rig.settled_trim(&mut handle)?;
    drop(handle.symmetric_buffer::<f32>(100)?);
    let error = refused("a buffer of nothing", handle.symmetric_buffer::<f32>(0))?;
    ensure_eq!(
        error.misuse(),
        Some(&Misuse::EmptyBuffer),
        "a buffer of nothing"
    );
    rig.finish(handle)
}

fn stale(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let memory = symmetric_of(&mut *comm)?.allocate(100, None)?;
    let first = symmetric_of(&mut *comm)?.register(&memory)?;
    symmetric_of(&mut *comm)?.retire(first)?;
    let again = symmetric_of(&mut *comm)?.register(&memory)?;
    ensure!(again != first, "a window's number is used again");
    let error = refused(
        "retiring a window twice",
        symmetric_of(&mut *comm)?.retire(first),
    )?;
    ensure_eq!(
        error.misuse(),
        Some(&Misuse::UnknownWindow),
        "retiring a window twice"
    );
    ensure_eq!(symmetric_of(&mut *comm)?.window_count(), 1, "windows");
    let slice = comm.window_of(memory.addr(), 100).map(|slice| slice.window);
    ensure_eq!(slice, Some(again), "the window of the address");
    symmetric_of(&mut *comm)?.retire(again)?;
    ensure!(
        comm.window_of(memory.addr(), 1).is_none(),
        "a window that is gone is found"
    );
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn once(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let memory = symmetric_of(&mut *comm)?.allocate(100, None)?;
    let window = symmetric_of(&mut *comm)?.register(&memory)?;
    for _ in 0..100 {
        let registered = symmetric_of(&mut *comm)?.register(&memory);
        let error = refused("registering a range again", registered)?;
        ensure_eq!(
            error.misuse(),
            Some(&Misuse::AlreadyRegistered),
            "the error"
        );
        ensure!(!error.poisons(), "it poisons");
    }
    ensure_eq!(symmetric_of(&mut *comm)?.window_count(), 1, "windows");
    symmetric_of(&mut *comm)?.retire(window)?;
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn overlapping(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let memory = symmetric_of(&mut *comm)?.allocate(3 * 4096, None)?;
    let window = symmetric_of(&mut *comm)?.register(&memory)?;
    for (offset, bytes) in [(0, 4096), (4096, 4096), (4096, 8192), (100, 50)] {
        let part = rig.part(&memory, offset, bytes)?;
        let registered = symmetric_of(&mut *comm)?.register(&part);
        let error = refused("registering a part of a window", registered)?;
        let known = matches!(
            error.misuse(),
            Some(Misuse::AlreadyRegistered | Misuse::NotRegistrable { .. })
        );
        ensure!(known, "registering a part of a window: {error}");
        let found = comm.window_of(part.addr(), bytes);
        let found = found.map(|slice| (slice.window, slice.offset));
        ensure_eq!(found, Some((window, offset)), "the window of a part");
    }
    ensure_eq!(symmetric_of(&mut *comm)?.window_count(), 1, "windows");
    symmetric_of(&mut *comm)?.retire(window)?;
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn offsets(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let memory = symmetric_of(&mut *comm)?.allocate(10_000, None)?;
    let window = symmetric_of(&mut *comm)?.register(&memory)?;
    for offset in [0, 1, 77, 4096, 9_999] {
        let Some(slice) = comm.window_of(memory.addr().offset(offset), 1) else {
            return Err(Failure(format!("no window at offset {offset}")));
        };
        ensure_eq!((slice.window, slice.offset), (window, offset), "the slice");
        ensure_eq!(slice.comm, comm.info().id, "the slice's communicator");
        let mine = Rank::new(rig.rank());
        let own = symmetric_of(&mut *comm)?.peer_address(window, mine, offset)?;
        ensure_eq!(own, memory.addr().offset(offset), "this rank's own address");
    }
    ensure!(
        comm.window_of(memory.addr().offset(1), memory.bytes())
            .is_none(),
        "a range that leaves the window is found in it"
    );
    let mut symmetric = symmetric_of(&mut *comm)?;
    refused(
        "a peer that is none",
        symmetric.peer_address(window, Rank::new(99), 0),
    )?;
    let far = symmetric.peer_address(window, Rank(0), memory.bytes() + 1);
    refused("an offset beyond the end", far)?;
    let unknown = symmetric.peer_address(WindowId(99), Rank(0), 0);
    refused("a window that is none", unknown)?;
    symmetric = symmetric_of(&mut *comm)?;
    symmetric.retire(window)?;
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn any_offset(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    handle.set_staging(collectives_core::path::Staging::Auto);
    let mut buffer = handle.symmetric_buffer::<u8>(20_000)?;
    for start in [0, 1, 2, 4, 8, 16, 33, 4094, 4096] {
        for count in [1, 3, 64, 5000] {
            let marks = vec![0x77_u8; 20_000];
            buffer.write(&marks, rig.stream())?;
            let mut slice = buffer.slice(start..start + count)?;
            slice.write(&rig.input(count, start), rig.stream())?;
            handle.all_reduce(&mut slice, ReduceOp::Sum, rig.stream())?;
            let what = format!("{count} bytes at {start}");
            rig.expect_sum(&what, &slice, start, rig.stream())?;
            let before = buffer.slice(..start)?;
            rig.expect_all("what is before", &before, &marks[..start], rig.stream())?;
            let after = buffer.slice(start + count..)?;
            rig.expect_all(
                "what is after",
                &after,
                &marks[start + count..],
                rig.stream(),
            )?;
        }
    }
    drop(buffer);
    let _deferred = handle.close()?;
    Ok(())
}

fn slices(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    handle.set_staging(collectives_core::path::Staging::Auto);
    let buffer = handle.symmetric_buffer::<f32>(1000)?;
    let window = buffer.window().map(|slice| slice.window);
    let clone = buffer.clone();
    let views = [
        buffer.slice(..)?,
        clone.slice(500..)?,
        buffer.slice(3..700)?.slice(10..20)?,
    ];
    for mut view in views {
        view.write(&rig.input(view.len(), 1), rig.stream())?;
        rig.witness().forget();
        let report = handle.all_reduce(&mut view, ReduceOp::Sum, rig.stream())?;
        ensure_eq!(report.path, Path::ZeroCopy, "the path of a view");
        let seen = rig.witness().moved();
        let side = seen.first().map(|op| op.send);
        ensure_eq!(
            side,
            Some(view.operand()),
            "the operand that reached the backend"
        );
        let named = side.and_then(|side| side.window).map(|slice| slice.window);
        ensure_eq!(named, window, "the window of the operand");
        rig.expect_sum("a view", &view, 1, rig.stream())?;
    }
    drop((buffer, clone));
    let _deferred = handle.close()?;
    Ok(())
}

fn one_order(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("exact")?;
    let mut order = Vec::new();
    for index in 1..6 {
        rig.eager(&mut handle, index * 1000, rig.stream())?;
        let buffer = handle.symmetric_buffer::<u8>(index * 100)?;
        order.push(buffer.window().map(|slice| slice.window.0));
    }
    rig.expect_alike("the numbers of windows", &format!("{order:?}"))?;
    rig.expect_alike("registrations", &format!("{:?}", rig.witness().windows()))?;
    let _deferred = handle.close()?;
    Ok(())
}

fn all_retired(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let mut scratch = rig.pool("exact", rig.options())?;
    for index in 1..5 {
        rig.lease(&mut *comm, &mut *scratch, index * 5000)?
            .complete()?;
    }
    let _deferred = scratch.close(&mut *comm)?;
    let left = symmetric_of(&mut *comm)?.window_count();
    ensure_eq!(left, 0, "windows after the allocator was closed");
    let mut live = Vec::new();
    for event in rig.witness().windows() {
        match event {
            WindowEvent::Registered(window, _) => live.push(window),
            WindowEvent::Retired(window) => live.retain(|&other| other != window),
        }
    }
    ensure_eq!(live, Vec::new(), "windows that were never retired");
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn used_windows_stay(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("replace")?;
    let mut graph = rig.replay_of(&mut handle, 1 << 12)?;
    let captured = |event: &&WindowEvent| matches!(event, WindowEvent::Registered(..));
    let windows = rig.witness().windows();
    let Some(&WindowEvent::Registered(used, _)) = windows.iter().find(captured) else {
        return Err(Failure("no window was registered".to_owned()));
    };
    for granules in 1..5 {
        rig.eager(&mut handle, granules * 2 * rig.granule(), rig.stream())?;
        let _trimmed = handle.trim()?;
        let gone = rig
            .witness()
            .windows()
            .contains(&WindowEvent::Retired(used));
        ensure!(!gone, "the window of a graph was retired");
    }
    rig.replay(&mut graph, 3, rig.stream())?;
    drop(graph);
    rig.settle();
    rig.meet()?;
    let _trimmed = handle.trim()?;
    let gone = rig
        .witness()
        .windows()
        .contains(&WindowEvent::Retired(used));
    ensure!(gone, "the window of a graph that is gone stays");
    let _deferred = handle.close()?;
    Ok(())
}

fn abort_with_windows(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let memory = symmetric_of(&mut *comm)?.allocate(100, None)?;
    symmetric_of(&mut *comm)?.register(&memory)?;
    rig.meet()?;
    let handle = comm.abort_handle();
    if rig.rank() == 0 {
        handle.abort("on purpose");
        handle.abort("again");
    }
    rig.meet()?;
    let error = refused(
        "work after an abort",
        symmetric_of(&mut *comm)?.register(&memory),
    )?;
    ensure!(error.poisons(), "work after an abort: {error}");
    let health = comm.abort_handle().health();
    refused("the health of an aborted communicator", health)?;
    drop(memory);
    // It is closed in any case, and may say once more that it was aborted.
    let _aborted = comm.shutdown();
    Ok(())
}

fn nothing_left(rig: &mut Rig<'_>) -> Outcome {
    rig.settle();
    let before = rig.mapped_bytes();
    let mut handle = rig.collectives("geometric")?;
    for index in 1..6 {
        rig.eager(&mut handle, index * rig.granule(), rig.stream())?;
        let buffer = handle.symmetric_buffer::<u8>(index)?;
        drop(buffer);
    }
    ensure!(rig.mapped_bytes() > before, "nothing was mapped");
    let deferred = handle.close()?;
    ensure_eq!(
        (deferred.windows, deferred.mapped_bytes),
        (0, 0),
        "what is left to graphs that there are not"
    );
    rig.settle();
    ensure_eq!(rig.mapped_bytes(), before, "mapped bytes");
    Ok(())
}

fn never_data(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let count = rig.granule() / 4;
    let mut data = handle.symmetric_buffer::<f32>(count)?;
    data.write(&rig.input(count, 9), rig.stream())?;
    let mut graph = rig.replay_of(&mut handle, rig.granule())?;
    let mut more = handle.symmetric_buffer::<f32>(count)?;
    more.write(&rig.input(count, 8), rig.stream())?;
    for round in 0..4 {
        rig.replay(&mut graph, round, rig.stream())?;
        rig.eager(&mut handle, (1 + round) * rig.granule(), rig.stream())?;
    }
    rig.expect_all("data before", &data, &rig.input(count, 9), rig.stream())?;
    rig.expect_all("data after", &more, &rig.input(count, 8), rig.stream())?;
    drop((graph, data, more));
    let deferred = handle.close();
    match deferred {
        Ok(_) => Ok(()),
        Err(error) if *error.kind() == ErrorKind::Closed => Ok(()),
        Err(error) => Err(error.into()),
    }
}
