# One check, one recipe. The commands themselves are in .ci/run.

# Every check, as CI runs them.
all:
    .ci/run

fmt:
    .ci/run fmt

lint:
    .ci/run lint

test:
    .ci/run test

mpi:
    .ci/run mpi

features:
    .ci/run features

loom:
    .ci/run loom

tsan:
    .ci/run tsan

doc:
    .ci/run doc

examples:
    .ci/run examples

hygiene:
    .ci/run hygiene

# These two need tools that CI does not install: cargo-deny and typos-cli.
deny:
    cargo deny check bans licenses sources

typos:
    typos

# These need cargo-fuzz and a nightly compiler, or RUSTC_BOOTSTRAP=1; and cargo-mutants.
fuzz target seconds="60":
    cargo fuzz run {{target}} fuzz/corpus/{{target}} fuzz/seeds/{{target}} -- -max_total_time={{seconds}}

mutants:
    cargo mutants
