//! What the types refuse, so that safe code cannot do it.

#[test]
fn the_compiler_refuses_unsound_uses() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/refused/accepted.rs");
    cases.compile_fail("tests/refused/[!a]*.rs");
}
