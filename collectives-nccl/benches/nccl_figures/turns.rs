//! Who comes when, so that nobody gains or loses by whom he follows.

/// The order of `count` variants in a round.
///
/// What ran just before leaves its traces in caches, predictors and queues, so within rounds each variant
/// comes right behind each other one equally often, as long as there are a multiple of `count` rounds, or
/// of twice as many if `count` is odd: the rows of a square balanced for residual effects (E. J. Williams,
/// "Experimental designs balanced for the estimation of residual effects of treatments", Australian Journal
/// of Scientific Research A 2, 1949).
pub(crate) fn turns(count: usize, round: usize) -> impl Iterator<Item = usize> {
    let mirrored = count % 2 == 1 && (round / count) % 2 == 1;
    (0..count).map(move |turn| {
        let turn = if mirrored { count - 1 - turn } else { turn };
        // 0, 1, count - 1, 2, count - 2 and so on, where all steps differ.
        let zigzag = match turn % 2 {
            1 => turn.div_ceil(2),
            _ => count - turn / 2,
        };
        (zigzag + round) % count
    })
}
