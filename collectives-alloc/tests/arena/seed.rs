//! The seed trace, by policy.

use collectives_alloc::config::ScratchConfig;
use collectives_host::model::DeviceModel;
use collectives_host::world::HostWorld;
use rstest::rstest;

use crate::pages::pages;
use crate::{DEADLINE, Rig};

/// How much smaller everything is than on a GPU, so that the bytes which are moved do not make the test slow.
const SCALE: usize = 32;
const MIB: usize = (1 << 20) / SCALE;
/// Bytes of a token: 5120 elements of bf16.
const TOKEN: usize = (10 << 10) / SCALE;
/// Decode batches to capture, and prompts, padded to 64 tokens.
const DECODES: [usize; 5] = [64, 64, 64, 128, 256];
const PROMPTS: [usize; 16] = [
    64, 64, 128, 192, 192, 256, 320, 384, 448, 512, 512, 576, 640, 704, 704, 768,
];

// The bytes are bf16's, and the elements i32, whose sums the rig can tell.
#[rstest]
#[case("exact", 60)]
#[case("geometric-class", 16)]
#[case("geometric", 14)]
#[case("arena", 8)]
fn every_policy_keeps_on_the_seed_trace_what_theory_says(
    #[case] policy: &str,
    #[case] mebibytes: usize,
) {
    let model = |_| DeviceModel::new().with_granule(2 * MIB);
    let world = HostWorld::new(2).model(model).deadline(DEADLINE);
    let kept = world.run(|comm| {
        let mut rig = Rig::new(comm, &ScratchConfig::with_policy(policy));
        let other = rig.device.create_stream().unwrap();
        let mut graphs = Vec::new();
        for tokens in DECODES {
            rig.eager(tokens * TOKEN, 0);
            graphs.push(rig.capture(tokens * TOKEN));
        }
        for (round, tokens) in PROMPTS.repeat(2).into_iter().enumerate() {
            rig.eager(tokens * TOKEN, round);
            for (index, graph) in graphs.iter_mut().enumerate() {
                let on = if index % 2 == 0 { &rig.stream } else { &other };
                rig.replay(graph, round + index, on);
            }
        }
        let files = pages(rig.device.id());
        // Nobody looks before all are done.
        rig.collectives.barrier(&rig.stream).unwrap();
        (rig.mapped(), rig.host.memory_report().mapped_bytes, files)
    });
    for (counted, device, (length, used)) in kept {
        assert_eq!((counted, device), (mebibytes * MIB, mebibytes * MIB));
        if policy == "arena" {
            assert_eq!(
                (length, used),
                (8 * MIB, 7 * MIB + MIB / 2),
                "what was touched of it"
            );
        }
    }
}
