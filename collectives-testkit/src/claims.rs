//! What a harness claims must be there, and what it does not claim must say so when it is asked for.
#![forbid(unsafe_code)]

use collectives_core::error::{Error, ErrorKind, Result, Unsupported};
use collectives_core::graph::Capture;
use collectives_core::layered::symmetric_of;

use crate::capability::{Capability, Support};
use crate::case::{Case, Outcome, refused};
use crate::ensure;
use crate::rig::Rig;

static SYMMETRIC: Case = Case::new(
    "symmetric",
    "there is symmetric memory exactly where it is claimed",
    symmetric,
);
static GRAPHS: Case = Case::new(
    "graphs",
    "there are graphs exactly where they are claimed",
    graphs,
);
static CHILDREN: Case = Case::new(
    "child-graphs",
    "a graph can be a node exactly where that is claimed",
    children,
)
.needs(&[Capability::Graphs]);
static COMPARES: Case = Case::new(
    "compares-calls",
    "the communicator says of comparing calls what the harness does",
    compares,
);
static ALIASING: Case = Case::new(
    "aliasing",
    "windows can be extended exactly where that is claimed",
    aliasing,
);
static COUNTS: Case = Case::new(
    "counts-memory",
    "the probe counts memory exactly where that is claimed",
    counts,
);
static LONG_RANGES: Case = Case::new(
    "long-ranges",
    "the probe gives long ranges exactly where that is claimed",
    long_ranges,
);

/// The case that a capability is there or not, as the harness says, where that can be seen.
pub(crate) fn case(capability: Capability) -> Option<&'static Case> {
    match capability {
        Capability::Symmetric => Some(&SYMMETRIC),
        Capability::Aliasing => Some(&ALIASING),
        Capability::Graphs => Some(&GRAPHS),
        Capability::ChildGraphs => Some(&CHILDREN),
        Capability::ComparesCalls => Some(&COMPARES),
        Capability::CountsMemory => Some(&COUNTS),
        Capability::LongRanges => Some(&LONG_RANGES),
        _ => None,
    }
}

/// Fails unless something is there where the harness claims it, and is not where it does not.
fn expect(rig: &Rig<'_>, capability: Capability, there: bool, what: &str) -> Outcome {
    match rig.harness.supports(capability) {
        Support::Yes => {
            ensure!(there, "the harness claims `{capability}`: {what} says no");
        }
        Support::No(_) => {
            ensure!(!there, "the harness lacks `{capability}`: {what} says yes");
        }
    }
    Ok(())
}

/// What must be the error of what is not there.
fn unsupported<T>(what: &str, asked: Result<T>) -> Outcome<Error> {
    let error = refused(what, asked)?;
    ensure!(
        matches!(error.kind(), ErrorKind::Unsupported(_)),
        "{what} is not unsupported: {error}"
    );
    Ok(error)
}

fn symmetric(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let claims = comm.capabilities().symmetric.is_ok();
    let what = "`Capabilities::symmetric`";
    expect(rig, Capability::Symmetric, claims, what)?;
    let there = comm.symmetric().is_some();
    let what = "`Communicator::symmetric`";
    expect(rig, Capability::Symmetric, there, what)?;
    if !there {
        let asked = symmetric_of(&mut *comm).map(|_| ());
        let _error = unsupported("asking for symmetric memory", asked)?;
    }
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn aliasing(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let extensible = comm.symmetric().map(|symmetric| symmetric.extensible());
    let there = matches!(extensible, Some(Ok(_)));
    expect(
        rig,
        Capability::Aliasing,
        there,
        "`SymmetricMemory::extensible`",
    )?;
    if let Some(refused @ Err(_)) = extensible {
        let _error = unsupported("making windows extensible", refused)?;
    }
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn graphs(rig: &mut Rig<'_>) -> Outcome {
    let device = rig.device();
    let there = device.graphs().is_some();
    expect(rig, Capability::Graphs, there, "`Device::graphs`")?;
    if !there {
        let begun = Capture::begin(&*device, &mut rig.stream).map(drop);
        let error = unsupported("a capture", begun)?;
        let kind = ErrorKind::Unsupported(Unsupported::Graphs);
        ensure!(*error.kind() == kind, "a capture: {error}");
    }
    Ok(())
}

fn children(rig: &mut Rig<'_>) -> Outcome {
    let (child, _) = rig.capture(|_| Ok(()))?;
    let (_graph, embedded) = rig.capture(|capture| Ok(capture.embed(&child)))?;
    let there = embedded.is_ok();
    expect(rig, Capability::ChildGraphs, there, "`Graphs::children`")?;
    if !there {
        let error = unsupported("a child graph", embedded)?;
        let kind = ErrorKind::Unsupported(Unsupported::ChildGraphs);
        ensure!(*error.kind() == kind, "a child graph: {error}");
    }
    Ok(())
}

fn compares(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    let there = comm.capabilities().compares_calls;
    let what = "`Capabilities::compares_calls`";
    expect(rig, Capability::ComparesCalls, there, what)?;
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn counts(rig: &mut Rig<'_>) -> Outcome {
    let there = rig.probe().mapped_bytes().is_some();
    expect(
        rig,
        Capability::CountsMemory,
        there,
        "`Probe::mapped_bytes`",
    )
}

fn long_ranges(rig: &mut Rig<'_>) -> Outcome {
    let there = rig.probe().long_range(4 << 20).is_some();
    expect(rig, Capability::LongRanges, there, "`Probe::long_range`")
}
