//! What a window costs, by size.

use std::time::Instant;

use collectives_core::error::Result;
use collectives_core::layered::symmetric_of;
use serde::{Deserialize, Serialize};

use crate::point::median;
use crate::variant::Ways;

const TIMES: usize = 5;

/// Milliseconds, on one rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Registration {
    pub(crate) bytes: usize,
    pub(crate) allocate: f64,
    pub(crate) register: f64,
    pub(crate) retire: f64,
}

pub(crate) fn measure(ways: &mut Ways) -> Result<Vec<Registration>> {
    let mut all = Vec::new();
    for bytes in [2 << 20, 16 << 20, 128 << 20, 1 << 30] {
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..TIMES {
            let comm = ways.caller.communicator_mut();
            let begun = Instant::now();
            let memory = symmetric_of(comm)?.allocate(bytes, None)?;
            let allocated = Instant::now();
            let window = symmetric_of(comm)?.register(&memory)?;
            let registered = Instant::now();
            symmetric_of(comm)?.retire(window)?;
            let steps = [
                allocated - begun,
                registered - allocated,
                registered.elapsed(),
            ];
            for (times, step) in times.iter_mut().zip(steps) {
                times.push(step.as_secs_f64() * 1e3);
            }
            drop(memory);
            ways.device.collect();
        }
        let [allocate, register, retire] = times.map(|times| median(times.into_iter()));
        all.push(Registration {
            bytes,
            allocate,
            register,
            retire,
        });
    }
    Ok(all)
}
