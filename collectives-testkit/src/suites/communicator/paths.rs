//! Paths: which one a call takes, what reaches the backend on it, and what is reported of it.
#![forbid(unsafe_code)]

use collectives_core::buffer::Buffer;
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::error::ErrorKind;
use collectives_core::layered::Layered;
use collectives_core::path::{Path, Reason, Staging};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::tensor::Tensor;

use crate::capability::Capability::Symmetric;
use crate::case::{Case, Failure, Outcome, refused};
use crate::decorators::{NullWindows, WithoutSymmetric};
use crate::planted::Planted;
use crate::rig::{Handle, Rig};
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[
    Case::new(
        "F12",
        "staged and direct calls of every policy are equal",
        policies_agree,
    )
    .needs(&[Symmetric])
    .catches(Planted::StagedSumIsMaximum),
    Case::new(
        "E9",
        "a staged operation reads the lease and not the tensor",
        reads_the_lease,
    )
    .needs(&[Symmetric])
    .catches(Planted::OriginalPointer),
    Case::new("E17", "the path reported is the path taken", paths)
        .needs(&[Symmetric])
        .catches(Planted::WindowsStripped),
    Case::new(
        "F6",
        "without symmetric memory every call takes the ordinary path",
        without,
    )
    .catches(Planted::LastElementLost),
    Case::new(
        "F6",
        "registrations that give no window send calls the ordinary way",
        null_windows,
    )
    .needs(&[Symmetric])
    .catches(Planted::FallbackUndeclared),
];

fn policies_agree(rig: &mut Rig<'_>) -> Outcome {
    let mut results = Vec::new();
    for policy in ["exact", "replace", "geometric", "geometric-class", "none"] {
        let comm = rig.communicator()?;
        let scratch = match policy {
            "none" => Box::new(collectives_core::no_scratch::NoScratch),
            policy => rig.pool(policy, rig.options())?,
        };
        let mut handle = rig.handle(comm, scratch);
        handle.set_staging(match policy {
            "none" => Staging::Never,
            _ => Staging::Forced,
        });
        // Inexact on purpose: one order of additions everywhere.
        let values: Vec<f32> = (0..3001_u16)
            .map(|index| (f32::from(index) + 0.1) / (f32::from(index % 7) + 1.7))
            .collect();
        let mut found = Vec::new();
        for count in [1, 500, 3001] {
            let mut tensor = Buffer::from_slice(&rig.device(), &values[..count], rig.stream())?;
            handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
            let bits = tensor.read(rig.stream())?;
            found.extend(bits.into_iter().map(f32::to_bits));
        }
        results.push((policy, found));
        let _deferred = handle.close()?;
    }
    let (_, first) = &results[0];
    for (policy, found) in &results {
        ensure!(found == first, "the bits of `{policy}` differ");
    }
    let hash = crate::rig::hash(first);
    rig.expect_alike("the bits", &hash.to_string())
}

fn reads_the_lease(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    rig.eager(&mut handle, 3 * rig.granule(), rig.stream())?;
    for bytes in [4, 4000, 2 * rig.granule()] {
        rig.witness().forget();
        rig.eager(&mut handle, bytes, rig.stream())?;
        let seen = rig.witness().moved();
        let [op] = seen.as_slice() else {
            return Err(Failure(format!("{} operations for one call", seen.len())));
        };
        for side in [op.send, op.recv] {
            ensure_eq!(side.bytes, bytes, "bytes of the operand");
            let found = handle_window(&handle, side);
            ensure_eq!(
                side.window,
                found,
                "the window the operand names, and the one it is in"
            );
            ensure!(side.window.is_some(), "a staged operand lies in no window");
        }
    }
    let _deferred = handle.close()?;
    Ok(())
}

fn handle_window(
    handle: &Handle,
    side: collectives_core::addr::Operand,
) -> Option<collectives_core::addr::WindowSlice> {
    use collectives_core::communicator::Communicator;
    handle.communicator().window_of(side.addr, side.bytes)
}

fn paths(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    handle.set_staging(Staging::Auto);
    let count = 4096;
    for staging in [Staging::Auto, Staging::Forced, Staging::Never] {
        handle.set_staging(staging);
        let mut ordinary = rig.tensor::<i32>(count, 1)?;
        let mut window = handle.symmetric_buffer::<i32>(count)?;
        window.write(&rig.input(count, 1), rig.stream())?;
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Average] {
            path_of(rig, &mut handle, &mut ordinary, op)?;
            path_of(rig, &mut handle, &mut window, op)?;
        }
        let mut slice = window.slice(8..1000)?;
        path_of(rig, &mut handle, &mut slice, ReduceOp::Sum)?;
        drop((slice, window));
        let _trimmed = handle.trim()?;
    }
    let _deferred = handle.close()?;
    Ok(())
}

/// Runs an all-reduce and compares the report with what reached the backend and with its table.
fn path_of(rig: &Rig<'_>, handle: &mut Handle, tensor: &mut Buffer<i32>, op: ReduceOp) -> Outcome {
    use collectives_core::communicator::Communicator;
    rig.witness().forget();
    let report = handle.all_reduce(tensor, op, rig.stream())?;
    let seen = rig.witness().moved();
    let [reached] = seen.as_slice() else {
        return Err(Failure(format!("{} operations for one call", seen.len())));
    };
    let in_windows = reached.send.window.is_some() && reached.recv.window.is_some();
    let own = reached.recv.same_range(tensor.operand());
    let taken = match (in_windows, own) {
        (true, true) => [Path::ZeroCopy, Path::ZeroCopy],
        (true, false) => [Path::Staged, Path::Staged],
        (false, _) => [Path::Direct, Path::Fallback],
    };
    // A buffer in a window keeps it also on the ordinary path.
    let ordinary = matches!(report.path, Path::Direct | Path::Fallback);
    let agrees = taken.contains(&report.path) || ordinary && own;
    ensure!(
        agrees,
        "reported {report:?}, reached the backend: {reached:?}"
    );
    let call = Collective {
        op: Op::AllReduce(op),
        dtype: DType::I32,
        send: tensor.operand(),
        recv: tensor.operand(),
        counts: Counts::Even(tensor.len()),
    };
    let table = &handle.communicator().capabilities().paths;
    let ruled = table
        .rule(&call, Rank::new(rig.rank()), rig.ranks())
        .is_ok();
    let symmetric = matches!(report.path, Path::ZeroCopy | Path::Staged);
    ensure!(
        ruled || !symmetric,
        "a symmetric path without a kernel: {report:?}"
    );
    ensure!(
        !ruled || tensor.window().is_none() || symmetric,
        "a buffer in a window took the ordinary path: {report:?}"
    );
    Ok(())
}

fn without(rig: &mut Rig<'_>) -> Outcome {
    let none = WithoutSymmetric::around(rig.communicator()?);
    ordinary(rig, Box::new(none))
}

/// The capability is there, and what it promises turns out not to work.
fn null_windows(rig: &mut Rig<'_>) -> Outcome {
    let broken = Layered::new(NullWindows, rig.communicator()?);
    ordinary(rig, Box::new(broken))
}

/// Every call takes the ordinary path, for a reason that says so, and is right.
fn ordinary(rig: &mut Rig<'_>, comm: Box<dyn Communicator>) -> Outcome {
    let scratch = rig.pool("geometric", rig.options())?;
    let mut handle = rig.handle(comm, scratch);
    for round in 0..3 {
        let mut tensor = rig.tensor::<i32>(5000, round)?;
        let report = handle.all_reduce(&mut tensor, ReduceOp::Sum, rig.stream())?;
        let ordinary = matches!(report.path, Path::Fallback | Path::Direct);
        ensure!(ordinary, "the path without symmetric memory: {report:?}");
        ensure!(
            matches!(
                report.reason,
                Reason::NoSymmetricMemory | Reason::NoKernelForOperation | Reason::NoKernelForType
            ),
            "the reason: {report:?}"
        );
        rig.expect_sum("the ordinary path", &tensor, round, rig.stream())?;
    }
    let error = refused("a symmetric buffer", handle.symmetric_buffer::<u8>(1))?;
    let typed = matches!(error.kind(), ErrorKind::Unsupported(_));
    ensure!(typed, "a symmetric buffer: {error}");
    rig.finish(handle)
}
