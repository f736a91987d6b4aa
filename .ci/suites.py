"""Reads the output of `cargo test` and fails if any suite in it ran no test, or a crate is missing:
those named after the file, or all.

Exempt are binaries, the empty library that holds the examples together, and crates without doc tests
as long as some crate has them.
"""

import re
import sys

CRATES = [
    "collectives_core",
    "collectives_alloc",
    "collectives_host",
    "collectives_mpi",
    "collectives_nccl",
    "collectives_testkit",
]
EMPTY = ["collectives_examples"]
# Suites for a GPU, for several hosts, or for namespaces: where that is missing they say of every case why it is skipped.
PLATFORM = [
    ("gpu", "tests/gpu/main.rs"),
    ("conformance", "tests/conformance/main.rs"),
    ("hosts", "tests/hosts/main.rs"),
    ("networks", "tests/networks/main.rs"),
]
SUITE = re.compile(r"^\s+Running (?P<source>.+) \(.*?(?P<name>[^/\\]+?)-[0-9a-f]{16}(\.exe)?\)$")
DOCS = re.compile(r"^\s+Doc-tests (?P<name>\S+)$")
RESULT = re.compile(r"^test result: (?P<verdict>\w+)\. (?P<passed>\d+) passed; (?P<failed>\d+) failed; (?P<ignored>\d+) ignored")


def main(path, crates):
    suites, skipped, current = {}, {}, None
    for line in open(path, encoding="utf-8", errors="replace"):
        if match := SUITE.match(line):
            current = (match["name"], match["source"])
            suites[current] = 0
        elif match := DOCS.match(line):
            current = (match["name"], "doc tests")
            suites[current] = 0
        elif match := RESULT.match(line):
            if current is None:
                sys.exit(f"a result without a suite: {line}")
            if match["verdict"] != "ok" or match["failed"] != "0":
                sys.exit(f"{current} failed: {line}")
            suites[current] += int(match["passed"])
            skipped[current] = skipped.get(current, 0) + int(match["ignored"])

    wrong = []
    for (name, source), passed in suites.items():
        print(f"{passed:6} {name}: {source}")
        exempt = name in EMPTY or source == "doc tests" or source.startswith("unittests src/bin")
        exempt |= (name, source) in PLATFORM and skipped.get((name, source), 0) > 0
        if passed == 0 and not exempt:
            wrong.append(f"{name}: {source} ran nothing")
    for crate in crates:
        if not any(name == crate and source.startswith("unittests") for name, source in suites):
            wrong.append(f"{crate} has no unit tests in this run")
    if sum(passed for (_, source), passed in suites.items() if source == "doc tests") == 0:
        wrong.append("no doc test ran")
    total = sum(suites.values())
    if total == 0:
        wrong.append("nothing ran at all")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"passed in all: {total}")


main(sys.argv[1], sys.argv[2:] or CRATES)
