//! P: what a word takes from one thread to another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::sample::Sample;

const ROUND_TRIPS: u64 = 500;
const CHUNKS: u64 = 60;

/// A word on cache lines of its own.
#[repr(align(256))]
#[derive(Debug, Default)]
struct Word(AtomicU64);

/// Nanoseconds one way, between two threads that spin; the 25th percentile over short chunks.
pub(crate) fn one_way() -> f64 {
    let (ping, pong) = (Word::default(), Word::default());
    let last = ROUND_TRIPS * CHUNKS;
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 1..=last {
                wait_for(&ping, turn);
                pong.0.store(turn, Ordering::Release);
            }
        });
        let mut turn = 0;
        let chunks = (0..CHUNKS)
            .map(|_| {
                let begun = Instant::now();
                for _ in 0..ROUND_TRIPS {
                    turn += 1;
                    ping.0.store(turn, Ordering::Release);
                    wait_for(&pong, turn);
                }
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "a short time and a small number"
                )]
                let trips = (begun.elapsed().as_nanos() as f64, ROUND_TRIPS as f64);
                trips.0 / trips.1 / 2.0
            })
            .collect();
        Sample::new(chunks).typical()
    })
}

fn wait_for(word: &Word, turn: u64) {
    let mut looks = 0_u32;
    while word.0.load(Ordering::Acquire) != turn {
        looks += 1;
        // Both threads may have been put on one core.
        if looks.is_multiple_of(20_000) {
            thread::yield_now();
        }
    }
}
