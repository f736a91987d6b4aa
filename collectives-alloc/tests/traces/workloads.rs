//! Sizes in the order in which ten kinds of server and training loop meet them.

use std::collections::HashSet;

/// Bytes of a token with 5120 elements of bf16.
const TOKEN: usize = 10 << 10;
/// Batches that an inference server captures.
const BATCHES: [usize; 35] = [
    1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144, 152, 160,
    168, 176, 184, 192, 200, 208, 216, 224, 232, 240, 248, 256,
];

/// A workload: sizes in bytes, in order.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    sizes: Vec<usize>,
}

impl Workload {
    fn new(name: &'static str, sizes: impl IntoIterator<Item = usize>) -> Self {
        let sizes = sizes.into_iter().collect();
        Self { name, sizes }
    }

    pub(crate) fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Each size once, in order. A policy that never frees does nothing about the second use of a
    /// size, so that they are all that counts.
    pub(crate) fn first_uses(&self) -> Vec<usize> {
        let mut seen = HashSet::new();
        let sizes = self.sizes.iter().copied();
        sizes.filter(|&bytes| seen.insert(bytes)).collect()
    }
}

pub(crate) fn all() -> Vec<Workload> {
    let batches = || BATCHES.map(|batch| batch * TOKEN);
    let chat = || prompts(30_000, 1500.0, 1.3, 32_768, 7);
    let tokens = |tokens: usize| tokens * TOKEN;
    vec![
        Workload::new("one size", [8_396_800]),
        Workload::new("seed", seed().map(tokens)),
        Workload::new(
            "chat, prompts in pieces of 8192",
            batches()
                .into_iter()
                .chain(chat().flat_map(pieces).map(tokens)),
        ),
        Workload::new(
            "chat, whole prompts",
            batches().into_iter().chain(chat().map(tokens)),
        ),
        Workload::new(
            "code completion",
            batches()
                .into_iter()
                .chain(prompts(9_000, 1930.0, 0.7, 7_437, 11).map(tokens)),
        ),
        Workload::new(
            "packed training",
            prompts(3_000, 15_500.0, 0.05, 16_384, 13).map(|tokens| (tokens * 16) << 10),
        ),
        Workload::new(
            "training by a length curriculum",
            (0..2_000).map(|step| ((512 + step * 8) * 16) << 10),
        ),
        Workload::new("a slow ramp", (16..=4096).map(|step| (step * 64) << 10)),
        Workload::new(
            "units of a sharded model",
            [25, 411, 411, 25, 1188, 452, 25, 1].map(|mebibytes| mebibytes << 20),
        ),
        Workload::new(
            "captures in descending order",
            BATCHES.into_iter().rev().map(|batch| batch * 32 * TOKEN),
        ),
    ]
}

/// Decode batches of 1 to 256, and sixteen prompts twice, padded to 64 tokens.
fn seed() -> impl Iterator<Item = usize> {
    let prompts = [
        37, 64, 101, 150, 192, 230, 300, 350, 410, 480, 505, 570, 640, 655, 700, 768,
    ];
    let tokens = [1, 8, 64, 128, 256].into_iter().chain(prompts.repeat(2));
    tokens.map(|tokens: usize| tokens.next_multiple_of(64))
}

/// A prompt as pieces of at most 8192 tokens.
fn pieces(tokens: usize) -> impl Iterator<Item = usize> {
    let rest = tokens % 8192;
    std::iter::repeat_n(8192, tokens / 8192).chain((rest > 0).then_some(rest))
}

/// Lognormal lengths from a fixed seed, at most `most`.
fn prompts(
    count: usize,
    median: f64,
    sigma: f64,
    most: usize,
    seed: u64,
) -> impl Iterator<Item = usize> {
    let mut state = seed;
    (0..count).map(move |_| {
        // Twelve uniform numbers make a normal one, on every platform alike.
        let normal: f64 = (0..12).map(|_| uniform(&mut state)).sum::<f64>() - 6.0;
        let length = (median * (sigma * normal).exp()).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and what is too large saturates"
        )]
        let length = length as usize;
        length.clamp(1, most)
    })
}

/// The next of a sequence of numbers between 0 and 1 (SplitMix64).
fn uniform(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    let number = (mixed >> 11) as f64;
    number / (1_u64 << 53) as f64
}
