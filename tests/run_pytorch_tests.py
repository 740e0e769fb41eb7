"""PyTorch's own tests under an active session: ``python tests/run_pytorch_tests.py PATH [FILE
...]``.

``PATH`` is a checkout of PyTorch, of about the version that is installed (``pip install
expecttest`` as well). Each file is run three times: plain, in a session of one rank with the usual
plugins, and in one with ``capture=False``. What passes plain must pass in both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pytorch_own import MODES

FILES = (
    "test_optim.py",
    "optim/test_optim.py",
    "optim/test_lrscheduler.py",
    "optim/test_swa_utils.py",
    "nn/test_module_hooks.py",
    "nn/test_load_state_dict.py",
    "nn/test_lazy_modules.py",
    "nn/test_parametrization.py",
    "nn/test_init.py",
    "nn/test_pruning.py",
    "test_tensor_module_load.py",
    "test_dataloader.py",
)
Outcomes = dict[str, tuple[str, str]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="a checkout of PyTorch")
    parser.add_argument("files", nargs="*", default=FILES, help="below its folder test")
    parser.add_argument("--select", default="", help="as pytest's -k")
    options = parser.parse_args()
    found = [file for file in options.files if (options.path / "test" / file).exists()]
    if not found:
        parser.error(f"{options.path / 'test'} has none of {', '.join(options.files)}")
    lost = [compare(options.path / "test", file, options.select) for file in found]
    return 1 if any(lost) else 0


def compare(folder: Path, file: str, select: str) -> bool:
    """Run one file in all modes and say what differs. True if a session lost a test."""
    plain, *others = [run(folder, file, select, mode) for mode in MODES]
    passing = [name for name, (outcome, _) in plain.items() if outcome == "passed"]
    print(f"{file}: {len(passing)} of {len(plain)} pass plain", flush=True)
    lost = False
    for mode, outcomes in zip(MODES[1:], others, strict=True):
        failed = [name for name in passing if outcomes.get(name, ("missing", ""))[0] != "passed"]
        lost = lost or bool(failed)
        print(f"  {mode}: {len(passing) - len(failed)} of these", flush=True)
        for name in failed:
            print(f"    {name}: {' '.join(outcomes.get(name, ('missing', '')))}", flush=True)
    return lost


def run(folder: Path, file: str, select: str, mode: str) -> Outcomes:
    """The worst outcome of each test, and the last line of its report."""
    with tempfile.TemporaryDirectory() as scratch:
        told = Path(scratch, "outcomes")
        told.touch()
        arguments = [
            "-p",
            "pytorch_own",
            "-p",
            "no:cacheprovider",
            f"--torchbus={mode}",
            f"--outcomes={told}",
            "-q",
            "-k",
            select,
            file,
        ]
        search = os.pathsep.join(
            [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        )
        command = [
            sys.executable,
            "-m",
            "pytest",
            f"--rootdir={folder}",
            "-c",
            os.devnull,
            *arguments,
        ]
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": search},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode not in (0, 1) or not told.read_text():
            raise SystemExit(
                f"{file} does not run here, {mode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        outcomes: Outcomes = {}
        for name, outcome, report in map(json.loads, told.read_text().splitlines()):
            if outcomes.get(name, ("passed", ""))[0] != "failed":
                outcomes[name] = (outcome, " ".join(report))
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
