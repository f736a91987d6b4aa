//! What a call takes of its caller's time.

use std::time::Instant;

use collectives_core::error::Result;
use serde::{Deserialize, Serialize};

use crate::point::median;
use crate::variant::{ALL, Variant, Ways};

/// Calls of each kind, and how many are in flight before the device is waited for.
const CALLS: usize = 2000;
const IN_FLIGHT: usize = 40;

/// Microseconds of host time of one enqueued call of 16 bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HostTime {
    pub(crate) variant: String,
    pub(crate) microseconds: f64,
}

pub(crate) fn measure(ways: &mut Ways) -> Result<Vec<HostTime>> {
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); ALL.len()];
    for _ in 0..CALLS / IN_FLIGHT {
        for (index, variant) in ALL.into_iter().enumerate() {
            if [Variant::ZeroCopyAgain, Variant::StagedAgain].contains(&variant) {
                continue;
            }
            for _ in 0..IN_FLIGHT {
                let begun = Instant::now();
                ways.call(variant)?;
                times[index].push(begun.elapsed().as_secs_f64() * 1e6);
            }
            ways.device.synchronize(&ways.stream)?;
        }
    }
    Ok(ALL
        .into_iter()
        .zip(times)
        .filter(|(_, times)| !times.is_empty())
        .map(|(variant, times)| HostTime {
            variant: format!("{variant:?}"),
            microseconds: median(times.into_iter()),
        })
        .collect())
}
