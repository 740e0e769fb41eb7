"""Run the digits loop in one process and in a session, and compare the trained parameters, in
float64.

::

    python examples/compare.py

Three runs, each a separate command: one process; two ranks that divide the loop's own batch; two
ranks with a batch of half that size each. Exit status 0 if all three reach the same parameters, and
both ranks bit-identical ones; 1 if not.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import digits
import numpy
import torch
from torchbus import session

BATCH_SIZE = 48
LIMIT = 1e-9
RUNS = {
    "plain": "one process, batch_size={batch_size}",
    "global": 'with session(strategy="ddp", devices={ranks}, batch="global", verbose=True):'
    "    # the same batch_size={batch_size}, divided",
    "per_device": 'with session(strategy="ddp", devices={ranks}):'
    "    # batch_size={share} on each rank",
}


def compare(ranks: int, epochs: int) -> int:
    """Make the runs one after the other, and judge. Returns the exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for run, words in RUNS.items():
            print(
                "\n---",
                words.format(ranks=ranks, batch_size=BATCH_SIZE, share=BATCH_SIZE // ranks),
                flush=True,
            )
            command = [
                sys.executable,
                __file__,
                f"--ranks={ranks}",
                f"--epochs={epochs}",
                f"--run={run}",
                f"--folder={name}",
            ]
            # float64 on the CPU, so that it means the same everywhere
            environ = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
            subprocess.run(command, env=environ, check=True)
        print(
            "\n--- largest difference of a parameter, relative to the largest parameter"
            f" (limit {LIMIT:g})"
        )
        plain = numpy.load(folder / "plain-0.npy")
        return max(
            [
                judge(
                    run, [numpy.load(folder / f"{run}-{rank}.npy") for rank in range(ranks)], plain
                )
                for run in ("global", "per_device")
            ]
        )


def judge(run: str, ranks: list[numpy.ndarray], plain: numpy.ndarray) -> int:
    identical = all(numpy.array_equal(rank, ranks[0]) for rank in ranks)
    difference = float(numpy.abs(ranks[0] - plain).max() / numpy.abs(plain).max())
    good = identical and difference <= LIMIT
    print(
        f"{run:12}{difference:.1e} to the plain run; ranks"
        f" {'bit-identical' if identical else 'DIFFER'}: {'ok' if good else 'WRONG'}"
    )
    return int(not good)


def train(run: str, ranks: int, epochs: int, folder: Path) -> None:
    """One of the runs. Each rank writes the parameters that it ends with."""
    batch_size = BATCH_SIZE // ranks if run == "per_device" else BATCH_SIZE
    words = [
        "--double",
        f"--epochs={epochs}",
        f"--batch-size={batch_size}",
        f"--save={folder / 'best.pt'}",
    ]
    options = digits.parser().parse_args(words)
    if run == "plain":
        write(folder / f"{run}-0.npy", digits.main(options))
    elif run == "global":
        with session(strategy="ddp", devices=ranks, batch="global", verbose=True) as s:
            write(folder / f"{run}-{s.rank}.npy", digits.main(options))
    else:
        with session(strategy="ddp", devices=ranks) as s:
            write(folder / f"{run}-{s.rank}.npy", digits.main(options))


def write(path: Path, model: torch.nn.Module) -> None:
    numpy.save(path, torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Run the digits loop in one process and in a session, and compare."
    )
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 3, 4))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--run", choices=RUNS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.run is None:
        sys.exit(compare(words.ranks, words.epochs))
    train(words.run, words.ranks, words.epochs, words.folder)
