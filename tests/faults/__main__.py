"""The long form: tries many faults and prints what was tried. `make faults` runs it.

`python -m tests.faults [kills|writes|damage|hostile|soak]... [--scale 0.1]`: all kinds, or only those named.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tests.faults.damage import try_damage
from tests.faults.hostile import try_hostile
from tests.faults.kills import try_kills
from tests.faults.machine import COMPILER, Machine
from tests.faults.soak import try_soak
from tests.faults.tally import Tally
from tests.faults.writes import try_commands, try_training

KINDS = ("kills", "writes", "damage", "hostile", "soak")


def tallies(kinds: list[str], place: Path, scale: float, seed: int) -> Iterator[Tally]:
    """Try the kinds of faults; `scale` 1 is the whole long form."""
    every = max(1, round(1 / scale))
    if {"kills", "writes"} & {*kinds}:
        with Machine() as machine:
            if "kills" in kinds:
                yield try_kills(machine, place / "kills", round(200 * scale), seed)
            if "writes" in kinds:
                yield try_training(machine, place / "writes", every)
                yield from try_commands(machine, place / "commands", every=every)
    if "damage" in kinds:
        yield try_damage(place / "finished", round(8500 * scale), finished=True, seed=seed)
        yield try_damage(place / "stopped", round(1500 * scale), finished=False, seed=seed)
    if "hostile" in kinds:
        yield from try_hostile(place / "hostile", round(2700 * scale), seed)
    if "soak" in kinds:
        yield try_soak(place / "soak", round(100_000 * scale))


def main() -> None:
    """Try everything, print the tallies, and fail if one case ended badly."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=[*KINDS], help=", ".join(KINDS))
    parser.add_argument("--scale", type=float, default=1.0, help="Share of the cases to try.")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if unknown := {*chosen.kinds} - {*KINDS}:
        sys.exit(f"Unknown kind of fault: {', '.join(unknown)}.")
    if not COMPILER and {"kills", "writes"} & {*chosen.kinds}:
        sys.exit("The failing disk needs a C compiler: install gcc.")
    torch.set_num_threads(1)
    cases = wrong = 0
    with TemporaryDirectory(prefix="faults-") as place:
        started = time.monotonic()
        for tally in tallies(chosen.kinds, Path(place), chosen.scale, chosen.seed):
            print(f"{tally}  ({time.monotonic() - started:.0f} s)", flush=True)
            cases, wrong, started = cases + tally.cases, wrong + len(tally.wrong), time.monotonic()
    print(f"In all: {cases:,} cases, {wrong:,} wrong.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
