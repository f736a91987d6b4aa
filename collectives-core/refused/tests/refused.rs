//! What the types refuse, so that safe code cannot do it.

/// The counterpart of the refused programs. It is compiled here, because one program that must build
/// would have every other one built as well, where checking is enough.
#[path = "refused/accepted.rs"]
mod accepted;

#[test]
fn the_compiler_refuses_unsound_uses() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/refused/[!a]*.rs");
}
