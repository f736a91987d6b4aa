//! What a backend does not claim must say so when it is asked for.
#![forbid(unsafe_code)]

use collectives_core::error::{ErrorKind, Unsupported};
use collectives_core::graph::Capture;
use collectives_core::layered::symmetric_of;

use crate::capability::Capability;
use crate::case::{Case, Outcome, refused};
use crate::ensure;
use crate::rig::Rig;

static SYMMETRIC: Case = Case::new(
    "symmetric",
    "symmetric memory that is not claimed is unsupported",
    symmetric,
);
static GRAPHS: Case = Case::new(
    "graphs",
    "graphs that are not claimed are unsupported",
    graphs,
);
static CHILDREN: Case = Case::new(
    "child-graphs",
    "child graphs that are not claimed are unsupported",
    children,
)
.needs(&[Capability::Graphs]);
static COMPARES: Case = Case::new(
    "compares-calls",
    "the communicator does not claim to compare calls either",
    compares,
);
static ALIASING: Case = Case::new(
    "aliasing",
    "the communicator extends no windows either",
    aliasing,
);
static COUNTS: Case = Case::new(
    "counts-memory",
    "the probe does not count memory either",
    counts,
);

/// The case that a missing capability is missing, where its absence can be seen.
pub(crate) fn case(capability: Capability) -> Option<&'static Case> {
    match capability {
        Capability::Symmetric => Some(&SYMMETRIC),
        Capability::Aliasing => Some(&ALIASING),
        Capability::Graphs => Some(&GRAPHS),
        Capability::ChildGraphs => Some(&CHILDREN),
        Capability::ComparesCalls => Some(&COMPARES),
        Capability::CountsMemory => Some(&COUNTS),
        _ => None,
    }
}

fn symmetric(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    ensure!(
        comm.capabilities().symmetric.is_err(),
        "the communicator claims symmetric memory"
    );
    ensure!(comm.symmetric().is_none(), "there is symmetric memory");
    let asked = symmetric_of(&mut *comm).map(|_| ());
    let error = refused("asking for symmetric memory", asked)?;
    ensure!(
        matches!(error.kind(), ErrorKind::Unsupported(_)),
        "not unsupported: {error}"
    );
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn aliasing(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    if let Some(symmetric) = comm.symmetric() {
        let error = refused("making windows extensible", symmetric.extensible())?;
        ensure!(
            matches!(error.kind(), ErrorKind::Unsupported(_)),
            "not unsupported: {error}"
        );
    }
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn graphs(rig: &mut Rig<'_>) -> Outcome {
    let device = rig.device();
    ensure!(device.graphs().is_none(), "the device offers graphs");
    let error = refused(
        "a capture",
        Capture::begin(&*device, &mut rig.stream).map(drop),
    )?;
    ensure!(
        *error.kind() == ErrorKind::Unsupported(Unsupported::Graphs),
        "not unsupported: {error}"
    );
    Ok(())
}

fn children(rig: &mut Rig<'_>) -> Outcome {
    let (child, _) = rig.capture(|_| Ok(()))?;
    let (_graph, embedded) = rig.capture(|capture| Ok(capture.embed(&child)))?;
    let error = refused("a child graph", embedded)?;
    ensure!(
        *error.kind() == ErrorKind::Unsupported(Unsupported::ChildGraphs),
        "not unsupported: {error}"
    );
    Ok(())
}

fn compares(rig: &mut Rig<'_>) -> Outcome {
    let mut comm = rig.communicator()?;
    ensure!(
        !comm.capabilities().compares_calls,
        "the communicator claims to compare calls"
    );
    let _deferred = comm.shutdown()?;
    Ok(())
}

fn counts(rig: &mut Rig<'_>) -> Outcome {
    ensure!(rig.probe().mapped_bytes().is_none(), "the probe counts");
    Ok(())
}
