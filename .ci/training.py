"""Compares what `sharded_training --json` printed on several backends: the same losses, bit for bit."""

import json
import sys


def losses(path):
    with open(path, encoding="utf-8") as file:
        run = json.load(file)
    assert run["loss"], f"{path}: nothing was trained"
    return run["backend"], (run["loss"], run["gradient_norm"])


def main(first, *others):
    backend, expected = losses(first)
    backends = [backend]
    for path in others:
        backend, found = losses(path)
        assert found == expected, f"{path}: other losses than in {first}"
        assert backend not in backends, f"{path}: {backend} again"
        backends.append(backend)
    assert len(backends) > 1, "nothing to compare"
    print(f"training: the same losses on {', '.join(backends)}")


main(*sys.argv[1:])
