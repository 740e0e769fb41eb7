"""The same script under every engine, each compared with one process.

::

    python examples/engines/table.py               # those that are installed
    python examples/engines/table.py ddp tp        # only these

For each, ``torchbus run`` starts ``train.py`` on the CPU. The table says how far the parameters are
from those of one process, and how many bytes the tensors of a rank take after the last step.
Exit status 1 if an engine is further away than rounding explains.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

SCRIPT = Path(__file__).with_name("train.py")
LIMIT = 1e-5
"""In float32, after two epochs of AdamW."""


@dataclass(frozen=True)
class Engine:
    options: str
    """Of ``torchbus run``. ``batch=global``: a step sees the loader's own batch, divided."""
    ranks: int = 2


ENGINES = {
    "ddp": Engine("--strategy ddp -o batch=global"),
    "ddp_sharded": Engine("--strategy ddp_sharded -o batch=global"),
    "fsdp": Engine("--strategy fsdp -o batch=global"),
    "deepspeed_stage_1": Engine("--strategy deepspeed_stage_1 -o batch=global"),
    "deepspeed_stage_2": Engine("--strategy deepspeed_stage_2 -o batch=global"),
    "deepspeed_stage_3": Engine("--strategy deepspeed_stage_3 -o batch=global"),
    "pipeline": Engine("--strategy pipeline"),
    "pipeline, 1f1b": Engine("--strategy pipeline -o schedule=1f1b"),
    "pipeline x ddp": Engine("--strategy pipeline -o stages=2 -o batch=global", ranks=4),
    "tp": Engine("--strategy tp"),
    "ddp x tp": Engine("--strategy ddp -o tp=2 -o batch=global", ranks=4),
    "fsdp x tp": Engine("--strategy fsdp -o tp=2 -o batch=global", ranks=4),
}


@dataclass(frozen=True)
class Result:
    parameters: dict[str, torch.Tensor]
    bytes_per_rank: int
    """Of the rank that keeps most."""

    def distance(self, other: Result) -> float:
        """The largest difference of any parameter."""
        pairs = ((value, other.parameters[name]) for name, value in self.parameters.items())
        return max(float((one - two).abs().max()) for one, two in pairs)


def run(words: list[str]) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *words, str(SCRIPT), "--folder", folder]
        environ = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
        sizes = [int(path.read_text()) for path in Path(folder).glob("bytes-*")]
        return Result(torch.load(Path(folder, "model.pt"), weights_only=True), max(sizes))


def main(names: list[str]) -> int:
    """Returns the exit status."""
    alone = run([])
    print("| engine | ranks | largest difference from one process | MB per rank |")
    print("|---|---|---|---|")
    print(f"| one process | 1 | | {alone.bytes_per_rank / 1e6:.2f} |", flush=True)
    distances = []
    for name in names:
        engine = ENGINES[name]
        words = ["-m", "torchbus", "run", "--devices", str(engine.ranks), *engine.options.split()]
        result = run(words)
        distances.append(alone.distance(result))
        size = f"{result.bytes_per_rank / 1e6:.2f}"
        print(f"| {name} | {engine.ranks} | {distances[-1]:.1e} | {size} |", flush=True)
    return int(not max(distances, default=0.0) < LIMIT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=", ".join(ENGINES))
    given = parser.parse_args().engines
    unknown = [name for name in given if name not in ENGINES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    sys.exit(main(given or list(ENGINES)))
