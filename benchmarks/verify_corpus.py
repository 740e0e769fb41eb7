"""``torchbus verify`` on ten public scripts of docs/corpus.md: the verdict, and the cause.

::

    python benchmarks/verify_corpus.py FOLDER            # clones what is not there
    python benchmarks/verify_corpus.py FOLDER vae gan    # some of them

The scripts are not kept here. Their data sets are replaced by small ones (corpus_stubs), and one
network by a smaller one; one call is updated to current torch. The exit status is 1 if a verdict
is not the expected one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STUBS = Path(__file__).parent / "corpus_stubs"
DRAWS, READING, STATISTICS = "draws in training", "chance in reading data", "batch normalisation"
NOTHING_GAINED = "nothing was gained"


@dataclass(frozen=True)
class Script:
    """``causes``: those expected; none if the numbers are the same. ``note``: the beginning of one
    that is expected. ``edit``: a pattern in the script, and what replaces it.
    """

    repository: str
    commit: str
    path: str
    arguments: str = ""
    options: str = ""
    causes: tuple[str, ...] = ()
    note: str = ""
    edit: tuple[str, str] | None = None
    before: str = ""


EXAMPLES = ("pytorch/examples", "77f55b9121")
GANS = ("eriklindernoren/PyTorch-GAN", "36d3c77e5f")
GAN_ARGUMENTS = "--n_epochs 2 --batch_size 32 --n_cpu 0"
SCRIPTS = {
    "mnist": Script(*EXAMPLES, "mnist/main.py", "--batch-size 32 --no-accel", causes=(DRAWS,)),
    "mnist_rnn": Script(
        *EXAMPLES, "mnist_rnn/main.py", "--batch-size 32", causes=(STATISTICS, DRAWS)
    ),
    "vae": Script(
        *EXAMPLES,
        "vae/main.py",
        "--batch-size 32 --no-accel",
        "--loss-reduction sum",
        causes=(DRAWS,),
        before="results",
    ),
    "regression": Script(*EXAMPLES, "regression/main.py", causes=(DRAWS,)),
    "time_sequence": Script(
        *EXAMPLES,
        "time_sequence_prediction/train.py",
        "--steps 3",
        "--steps 1",  # of LBFGS, each with 20 passes over a thousand LSTM cells
        note=NOTHING_GAINED,
        edit=(r"load\('traindata.pt'\)", "load('traindata.pt', weights_only=False)"),
        before="traindata.pt",
    ),
    "gan": Script(*GANS, "implementations/gan/gan.py", GAN_ARGUMENTS, causes=(STATISTICS, DRAWS)),
    "wgan_gp": Script(
        *GANS, "implementations/wgan_gp/wgan_gp.py", GAN_ARGUMENTS, causes=(STATISTICS, DRAWS)
    ),
    "makemore": Script(
        "karpathy/makemore",
        "988aa59e4d",
        "makemore.py",
        "--num-workers 0 --n-layer 2 --n-embd 32 --n-embd2 32 --max-steps 40",
    ),
    "cifar": Script(
        "kuangliu/pytorch-cifar",
        "49b7aa97b0",
        "main.py",
        causes=(READING,),
        edit=(r"net = SimpleDLA\(\)", "net = LeNet()"),
        before="terminal",
    ),
    "adder": Script("karpathy/minGPT", "37baab71b9", "projects/adder/adder.py", causes=(DRAWS,)),
}


def fetched(folder: Path, script: Script) -> Path:
    """The script in a checkout of its repository, edited."""
    place = folder / script.repository.replace("/", "+")
    if not place.exists():
        url = f"https://github.com/{script.repository}"
        subprocess.run(["git", "clone", "-q", url, str(place)], check=True)
        subprocess.run(["git", "-C", str(place), "checkout", "-q", script.commit], check=True)
    path = place / script.path
    if script.edit is not None:
        path.write_text(re.sub(*script.edit, path.read_text()))
    return path


def prepared(script: Script, folder: Path) -> None:
    """What the script expects to be there."""
    if script.before == "results":
        (folder / "results").mkdir(exist_ok=True)
    if script.before == "traindata.pt" and not (folder / "traindata.pt").exists():
        subprocess.run([sys.executable, "generate_sine_wave.py"], cwd=folder, check=True)
    if script.before == "terminal":  # it asks `stty` for the width
        utils = folder / "utils.py"
        utils.write_text(re.sub(r"_, term_width = .*", "term_width = 80", utils.read_text()))


def verified(script: Script, path: Path, steps: int) -> dict[str, Any]:
    roots = [STUBS, *path.parents[1:3]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))}
    words = ["--json", "--steps", str(steps), *script.options.split(), "--", path.name]
    command = [sys.executable, "-m", "torchbus", "verify", *words, *script.arguments.split()]
    ended = subprocess.run(
        command, cwd=path.parent, env=environment, capture_output=True, text=True
    )
    if not ended.stdout.startswith("{"):
        raise SystemExit(ended.stderr)
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


def is_expected(script: Script, told: dict[str, Any]) -> bool:
    causes = {one["name"] for one in told["causes"]}
    notes = " ".join(told["notes"])
    return (
        told["status"] == bool(script.causes)
        and causes == set(script.causes)
        and script.note in notes
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("scripts", nargs="*", default=list(SCRIPTS))
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    wrong = 0
    for name in given.scripts:
        script, begun_s = SCRIPTS[name], time.monotonic()
        path = fetched(given.folder.resolve(), script)
        prepared(script, path.parent)
        told = verified(script, path, given.steps)
        right = is_expected(script, told)
        wrong += not right
        causes = ", ".join(one["name"] for one in told["causes"]) or "the same"
        word = "as expected" if right else "NOT EXPECTED"
        print(f"{name:14}{told['status']}  {causes}: {word}, {time.monotonic() - begun_s:.0f} s")
        if not right:
            print(f"    {told['headline']}", *told["notes"], told["traceback"], sep="\n    ")
        sys.stdout.flush()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
