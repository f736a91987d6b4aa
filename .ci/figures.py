"""Compares what `dynamic_inference --json` printed with what it must print.

The figures of the seed trace are those of docs/choosing-a-policy.md: hidden size 5120 in bf16, and
granules of 2 MiB.
"""

import json
import sys

LARGEST = 768 * 5120 * 2
# policy: capacity, mapped, registrations
SEED = {
    "exact": (51_118_080, 62_914_560, 12),
    "replace": (14_680_064, 14_680_064, 3),
    "geometric": (14_680_064, 14_680_064, 3),
    "geometric-class": (15_728_640, 16_777_216, 4),
    "reserved": (8_388_608, 8_388_608, 1),
    "arena": (8_388_608, 8_388_608, 4),
}


def rows(path, trace):
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    assert document["trace"] == trace, document["trace"]
    found = {row["policy"]: row for row in document["policies"]}
    assert set(found) == set(SEED), f"{trace}: the policies are {sorted(found)}"
    for policy, row in found.items():
        where = f"{trace}, {policy}: {row}"
        assert row["wrong_elements"] == 0, where
        assert row["graphs"] > 0 and row["replays"] > 0 and row["hits"] > 0, where
        assert row["mapped_bytes"] >= row["capacity_bytes"] > 0, where
    return found


def main(seed, server):
    for policy, row in rows(seed, "seed").items():
        got = (row["capacity_bytes"], row["mapped_bytes"], row["registrations"])
        assert got == SEED[policy], f"seed, {policy}: {got}, but must be {SEED[policy]}"
        assert row["largest_request_bytes"] == LARGEST, row
    found = rows(server, "server")
    assert found["exact"]["mapped_bytes"] > found["geometric"]["mapped_bytes"], found
    print("figures: as they must be, and no wrong element")


main(*sys.argv[1:])
