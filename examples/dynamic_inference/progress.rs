//! A bar on a terminal; nothing anywhere else.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Steps of one policy that rank 0 has made. Where ranks are processes it only says which policy
/// runs.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar for `steps` steps, on standard error if that is a terminal.
    pub(crate) fn new(policy: &str, steps: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{msg:16} [{bar:40}] {pos}/{len} {elapsed}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(policy.to_owned());
        Self(bar)
    }

    /// No bar.
    pub(crate) fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    /// One step more, on rank 0.
    pub(crate) fn step(&self, rank: usize) {
        if rank == 0 {
            self.0.inc(1);
        }
    }

    /// Takes the bar away, before anything is printed.
    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}
