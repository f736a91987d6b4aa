//! The sizes that an inference server meets, in tokens.

use std::error::Error;
use std::fs::File;
use std::path::Path;

use collectives_examples::rows::{self, Kind, Unit};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, LogNormal};

/// Bytes of an element, which is a bf16.
const ELEMENT: usize = 2;

/// Decode batches to capture, then prefills to serve.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) name: String,
    /// Elements a token takes in one all-reduce.
    pub(crate) hidden: usize,
    /// Batch sizes, in tokens, ascending.
    pub(crate) decodes: Vec<usize>,
    /// Prompt lengths, in tokens, in the order they come.
    pub(crate) prefills: Vec<usize>,
}

impl Trace {
    /// The sizes behind the published figures of an exact-size cache (48.75 MiB) and of
    /// power-of-two classes (15 MiB): 16 prompts on 12 padded lengths, swept twice.
    pub(crate) fn seed() -> Self {
        let prompts = [
            37, 64, 101, 150, 192, 230, 300, 350, 410, 480, 505, 570, 640, 655, 700, 768,
        ];
        let padded = |tokens: usize| tokens.next_multiple_of(64);
        Self {
            name: "seed".to_owned(),
            hidden: 5120,
            decodes: [1, 8, 64, 128, 256].map(padded).to_vec(),
            prefills: prompts.repeat(2).into_iter().map(padded).collect(),
        }
    }

    /// 500 unpadded prompts of a chat server: lognormal, median 600, sigma 1, at most 4,096.
    pub(crate) fn server() -> Result<Self, rand_distr::NormalError> {
        let mut random = ChaCha8Rng::seed_from_u64(600);
        let lengths = LogNormal::new(600_f64.ln(), 1.0)?;
        let length = |sample: f64| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "clamped to 1..=4096"
            )]
            let tokens = sample.round().clamp(1.0, 4096.0) as usize;
            tokens
        };
        Ok(Self {
            name: "server".to_owned(),
            hidden: 1024,
            decodes: (0..7).map(|power| 1 << power).collect(),
            prefills: (0..500)
                .map(|_| length(lengths.sample(&mut random)))
                .collect(),
        })
    }

    /// A file with a column `tokens` and, optionally, `kind`; rows without a kind are prefills.
    pub(crate) fn from_csv(path: &Path) -> Result<Self, Box<dyn Error>> {
        let at = |error: &dyn Error| format!("{}: {error}", path.display());
        let file = File::open(path).map_err(|error| at(&error))?;
        let hidden = 5120;
        let tokens = Unit {
            name: "tokens",
            bytes: hidden * ELEMENT,
        };
        let rows = rows::read(file, &[tokens]).map_err(|error| at(&error))?;
        let of = |kind| rows.iter().filter(move |row| row.kind == kind);
        let tokens = |kind| of(kind).map(|row| row.count).collect();
        let mut trace = Self {
            name: path.display().to_string(),
            hidden,
            decodes: tokens(Kind::Decode),
            prefills: tokens(Kind::Prefill),
        };
        trace.decodes.sort_unstable();
        Ok(trace)
    }

    /// Batches captured and prompts served.
    pub(crate) fn steps(&self) -> usize {
        self.decodes.len() + self.prefills.len()
    }

    /// The largest request, in bytes of bf16.
    pub(crate) fn largest_request(&self) -> usize {
        let tokens = self.decodes.iter().chain(&self.prefills).max();
        tokens.map_or(0, |tokens| tokens * self.hidden * ELEMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_trace_has_twelve_sizes_that_sum_to_the_published_figure() {
        let trace = Trace::seed();
        let mut sizes = trace.prefills.clone();
        sizes.extend(&trace.decodes);
        sizes.sort_unstable();
        sizes.dedup();
        assert_eq!(sizes.len(), 12);
        let bytes: usize = sizes.iter().map(|tokens| tokens * trace.hidden * 2).sum();
        assert_eq!(bytes, 51_118_080);
        assert_eq!(trace.prefills.len(), 32);
    }

    #[test]
    fn the_server_trace_is_the_same_every_time() {
        let trace = Trace::server().unwrap();
        assert_eq!(trace.prefills, Trace::server().unwrap().prefills);
        assert_eq!(trace.prefills.len(), 500);
        assert!(
            trace
                .prefills
                .iter()
                .all(|tokens| (1..=4096).contains(tokens))
        );
        let mut sorted = trace.prefills.clone();
        sorted.sort_unstable();
        assert!((450..750).contains(&sorted[250]), "median {}", sorted[250]);
    }
}
