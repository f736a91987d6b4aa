//! Branches of a capture that end before their time.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use collectives_core::error::{Error, Misuse, Result};
use collectives_core::graph::Capture;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;
use collectives_core::stream::Stream;

use crate::capability::Capability::{Graphs, Symmetric};
use crate::case::{Case, Outcome};
use crate::planted::Planted;
use crate::rig::Rig;
use crate::{ensure, ensure_eq};

/// The cases.
pub(super) const CASES: &[Case] = &[Case::new(
    "I45",
    "a branch whose body fails or panics is joined and the capture goes on",
    left_early,
)
.needs(&[Symmetric, Graphs])
.catches(Planted::PanicsLeaveBranches)];

/// How the body of a branch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Fails,
    Panics,
}

impl End {
    fn error() -> Error {
        Misuse::Other("the body of the branch failed".to_owned()).into()
    }

    fn now(self) -> Result<()> {
        match self {
            Self::Fails => Err(Self::error()),
            // Without the hook, whose message would be taken for a failure of the case.
            Self::Panics => resume_unwind(Box::new("the body of the branch panicked")),
        }
    }
}

fn left_early(rig: &mut Rig<'_>) -> Outcome {
    let mut handle = rig.collectives("geometric")?;
    let _plan = handle.reserve(&[Request::new(1 << 12)])?;
    let device = rig.device();
    for (round, end) in [End::Fails, End::Panics].into_iter().enumerate() {
        let mut side = device.create_stream()?;
        let mut on_side = rig.tensor::<f32>(1 << 10, round)?;
        let mut on_trunk = rig.tensor::<f32>(1 << 9, round)?;
        let capture = Capture::begin(&*device, &mut rig.stream)?;
        let left = catch_unwind(AssertUnwindSafe(|| {
            capture.branch(&mut side, |side: &Stream| {
                handle.all_reduce(&mut on_side, ReduceOp::Sum, side)?;
                end.now()
            })
        }));
        match left {
            Ok(result) => ensure_eq!(
                (end, result.map_err(|error| error.to_string())),
                (End::Fails, Err(End::error().to_string())),
                "what the branch gave"
            ),
            Err(_) => ensure_eq!(end, End::Panics, "how the body ended"),
        }
        // The trunk goes on after what the branch recorded.
        handle.all_reduce(&mut on_trunk, ReduceOp::Sum, capture.stream())?;
        // Had the branch not been joined, the capture would not end. CUDA has a joined stream capture until
        // then.
        let mut graph = capture.end()?.instantiate()?;
        let state = device.capture_state(&side)?;
        ensure!(state.is_none(), "{end:?}: the branch stays in {state:?}");
        graph.launch(&*device, rig.stream())?;
        let what = format!("after a branch that {end:?}");
        rig.expect_sum(&what, &on_side, round, rig.stream())?;
        rig.expect_sum(&what, &on_trunk, round, rig.stream())?;
        rig.eager(&mut handle, 1 << 10, &side)?;
    }
    rig.finish(handle)
}
