//! The code in the guide is the code of the toy.

use std::fs;
use std::path::Path;

/// Every piece of Rust in the page occurs, line by line, in a file of the toy.
#[test]
fn every_piece_of_the_guide_is_part_of_the_toy() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(here.join("../docs/implementing-a-backend.md")).unwrap();
    let toy = here.join("tests/toy");
    let sources: Vec<String> = ["main.rs", "device.rs", "communicator.rs", "reduce.rs"]
        .map(|name| fs::read_to_string(toy.join(name)).unwrap())
        .into();
    let pieces: Vec<_> = page
        .split("```rust\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(pieces.len() > 8, "{} pieces of code", pieces.len());
    for piece in pieces {
        let known = sources.iter().any(|source| source.contains(piece));
        assert!(known, "not in the toy:\n{piece}");
    }
}
