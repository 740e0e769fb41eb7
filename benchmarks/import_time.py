"""What an import costs over ``import torch``: each in new processes, by turns.

    python benchmarks/import_time.py [--rounds 15] [--json FILE]

Printed is the median over the processes, of which the first of each kind is not counted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from rounds import compared, show, write_json

CONTENDERS: dict[str, tuple[str, Sequence[str]]] = {
    "nothing": ("pass", ()),
    "torchbus": ("import torchbus", ("torchbus",)),
    "torchbus, ddp, sampler, log": (
        "import torchbus, torchbus_ddp, torchbus_sampler, torchbus_log",
        ("torchbus", "torchbus_ddp", "torchbus_sampler", "torchbus_log"),
    ),
    "Ignite": ("import ignite.engine", ("ignite",)),
    "Lightning Fabric": ("from lightning.fabric import Fabric", ("lightning",)),
    "Accelerate": ("from accelerate import Accelerator", ("accelerate",)),
    "Lightning": ("import lightning", ("lightning",)),
}
SCRIPT = """
import torch, time
begun = time.perf_counter()
{statement}
print(time.perf_counter() - begun)
"""


def seconds(statement: str) -> float:
    script = SCRIPT.format(statement=statement)
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True
    )
    return float(ended.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=15, help="processes for each (default: %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    rows = compared(
        CONTENDERS, lambda name: seconds(CONTENDERS[name][0]), options.rounds, "nothing"
    )
    cells = {row.contender: [f"{row.seconds * 1e3:.1f}"] for row in rows}
    show("Import time over `import torch`", ["imported", "ms"], cells, CONTENDERS)
    write_json({"import time": rows}, options)


if __name__ == "__main__":
    main()
