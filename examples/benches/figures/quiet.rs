//! Whether anybody else used the processors while something was measured.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// The share of all processors' time that others may take before a measurement is disturbed.
const TOLERATED: f64 = 0.03;

/// Processor time so far, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    total: f64,
    busy: f64,
    /// This process and the children it has waited for.
    own: f64,
}

impl Usage {
    /// `None` where the system does not tell.
    pub(crate) fn now() -> Option<Self> {
        let system = fs::read_to_string("/proc/stat").ok()?;
        let cpu = system.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in user.
        let ticks: Vec<f64> = cpu
            .split_whitespace()
            .take(8)
            .filter_map(|ticks| ticks.parse().ok())
            .collect();
        let total: f64 = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        // The name may hold spaces; after its parenthesis comes the state, field 3.
        let (_, fields) = own.rsplit_once(')')?;
        let own = fields
            .split_whitespace()
            .skip(11)
            .take(4)
            .filter_map(|ticks| ticks.parse::<f64>().ok())
            .sum();
        Some(Self {
            total,
            busy: total - idle,
            own,
        })
    }

    /// The share of processor time that others took since.
    pub(crate) fn others_since(&self) -> Option<f64> {
        let now = Self::now()?;
        let total = now.total - self.total;
        let others = (now.busy - self.busy) - (now.own - self.own);
        (total > 0.0).then(|| (others / total).max(0.0))
    }
}

/// Whether this share of others' work spoils a measurement.
pub(crate) fn is_disturbed(others: Option<f64>) -> bool {
    others.is_some_and(|others| others > TOLERATED)
}

/// Waits until nobody else works, or until the time is up.
pub(crate) fn wait(until: Instant) {
    while Instant::now() < until {
        let before = Usage::now();
        thread::sleep(Duration::from_millis(200));
        if !is_disturbed(before.and_then(|before| before.others_since())) {
            return;
        }
    }
}
