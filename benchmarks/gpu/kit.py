"""Runs all parts on the accelerator of this machine; writes one Markdown table and a JSON file.

    python benchmarks/gpu/kit.py [--small] [--sim] [--out FOLDER] [PART ...]

``python make.py gpu`` runs the tests that are marked ``gpu``, and then this.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
PARTS = {
    "waits": 40,
    "small_steps": 60,
    "ranks": 60,
    "nccl": 300,
    "float8": 90,
    "models": 150,
}
"""Seconds that each may take. On an H100 all take less than eight minutes."""


def run(part: str, words: list[str], limit_s: float) -> tuple[list[dict[str, Any]], str]:
    """The rows of a part, and what is wrong with it; it may be too slow."""
    command = [sys.executable, str(HERE / f"{part}.py"), *words]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
        output, problem = told.stdout, told.stderr[-2000:] if told.returncode else ""
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        problem = f"not ended after {limit_s:g} s"
    lines = output.splitlines()
    print("\n".join(line for line in lines if not line.startswith("ROW ")))
    return [json.loads(line[4:]) for line in lines if line.startswith("ROW ")], problem


def facts(sim: bool) -> dict[str, str]:
    kind = "sim" if sim else str(torch.accelerator.current_accelerator())
    name = "simulated accelerator: its times say nothing about a GPU" if sim else kind
    module = getattr(torch, kind.split(":")[0], None)
    if not sim and module is not None and hasattr(module, "get_device_name"):
        name = f"{module.get_device_name(0)}, {module.device_count()} of them"
    return {
        "device": name,
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "python": platform.python_version(),
        "command": "python " + " ".join(["benchmarks/gpu/kit.py", *sys.argv[1:]]),
    }


def table(told: dict[str, str], rows: list[dict[str, Any]], problems: dict[str, str]) -> str:
    lines = [f"- {name}: {value}" for name, value in told.items()]
    lines += ["", "| part | what | figure | to the loop by hand |", "|---|---|---|---|"]
    for one in rows:
        ratio = "" if one["ratio"] is None else f"{one['ratio']:.2f}"
        lines.append(
            f"| {one['part']} | {one['what']} | {one['value']:.4g} {one['unit']} | {ratio} |"
        )
    lines += [f"\n{part} failed:\n\n```text\n{why}\n```" for part, why in problems.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--sim", action="store_true", help="on the simulated accelerator")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=Path("gpu-table"))
    given = parser.parse_args()
    if unknown := {*given.parts} - {*PARTS}:
        parser.error(f"there is no part {', '.join(unknown)}: choose of {', '.join(PARTS)}")
    words = [f"--{name}" for name in ("small", "sim") if getattr(given, name)]
    rows: list[dict[str, Any]] = []
    problems: dict[str, str] = {}
    begun = time.monotonic()
    told = facts(given.sim)
    for part in given.parts or PARTS:
        found, problem = run(part, words, PARTS[part] * (4 if given.sim else 1))
        rows += found
        problems |= {part: problem} if problem else {}
        told["time"] = f"{time.monotonic() - begun:.0f} s"
        # after each part: the machine may be gone before the last one
        given.out.with_suffix(".md").write_text(table(told, rows, problems), "utf-8")
        data = json.dumps({"facts": told, "rows": rows}, indent=1)
        given.out.with_suffix(".json").write_text(data, "utf-8")
    print(table(told, rows, problems))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
