"""``torchbus verify``: does a script compute the same with a session as without one?"""

from __future__ import annotations

import argparse
import os
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO, Any

from torchbus.plugin import TorchbusError, UsageError

from torchbus_cli import session_options
from torchbus_cli.parser import Parser, complain
from torchbus_verify import page as verify_page
from torchbus_verify import report
from torchbus_verify.report import NOT_COMPARED
from torchbus_verify.runs.inside import RunRequest

USAGE = """torchbus verify [OPTION]... SCRIPT [ARG]...
       torchbus verify [OPTION]... -m MODULE [ARG]..."""
DESCRIPTION = """Run a training script without and with a session, and compare every step.

Both runs stop after --steps real steps of each optimizer. Each has a separate working folder, in
which the script finds its files; the script's folder is not written to. A difference is reported
with the first step and tensor, and with its cause, which is found by removing suspected causes.
If the script begins a session itself, its options count, and one rank is the reference.

Exit status: 0 the same, 1 different as the strategy is, 2 different and wrong, 3 not compared.
"""
EXAMPLES = """  torchbus verify train.py --lr 0.1
  torchbus verify --devices 4 --strategy fsdp --steps 50 train.py
  torchbus verify --float64 --json -m pkg.train
  torchbus verify --accumulate-grad-batches 4 train.py    against batches 4 times as large
"""
LAUNCHERS = ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
NOT_HERE = ("launch", "num_nodes", "verbose", "print_all_ranks")


def main(argv: list[str]) -> int:
    """Check with your script that several ranks compute what one process computes."""
    parser = _parser()
    try:
        given = vars(parser.parse(argv))
        argv = given.pop("program")
        if argv[:1] == ["--"]:
            del argv[0]
        if not argv:
            parser.error("which script? write torchbus verify [OPTION]... SCRIPT [ARG]...")
    except SystemExit as error:  # argparse exits with 2, which means wrong numbers here
        return NOT_COMPARED if error.code else 0
    json_wanted, page = given.pop("json"), given.pop("html")
    try:
        request = _request(argv, given)
    except TorchbusError as error:
        complain("torchbus verify", error)
        return NOT_COMPARED
    return _verify(request, json_wanted, page)


def _verify(request: RunRequest, json_wanted: bool, page: Path | None) -> int:
    from torchbus_verify._compat import import_dynamo
    from torchbus_verify.verifying import verify_request

    import_dynamo()
    with ProgressLine(request.steps, sys.stderr) as progress:
        verdict: report.Verdict = report.fit_to_show(verify_request(request, progress.show))
    if page is not None:
        page.write_text(verify_page.page(verdict), encoding="utf-8")
    print(report.dumps(verdict) if json_wanted else verdict)
    return verdict.status


def _request(argv: list[str], given: dict[str, Any]) -> RunRequest:
    by_module, steps, float64 = given.pop("module"), given.pop("steps"), given.pop("float64")
    plugins, options = given.pop("plugins", []), dict(given.pop("options", []))
    _refuse(argv, by_module, given | options)
    names = frozenset(given | options)
    options = {"strategy": "ddp", "devices": 2, **given, **options}
    if options["strategy"] != "dp":
        options = {"batch": "global", **options}
    folder = Path.cwd()
    return RunRequest(
        tuple(argv), by_module, tuple(plugins), options, steps, float64, folder, names
    )


def _refuse(argv: list[str], by_module: bool, given: dict[str, object]) -> None:
    if not by_module and not os.path.exists(argv[0]):
        session_options.find(*argv, by_module=False)  # reports which file was meant
    launcher = next((name for name in LAUNCHERS if name in os.environ), None)
    if launcher is not None:
        raise UsageError(
            "torchbus verify starts its own ranks: run it outside of torchrun, mpirun or srun"
            f" ({launcher} is set)"
        )
    wrong = next((name for name in NOT_HERE if name in given), None)
    if wrong is not None:
        raise UsageError(
            f"{wrong} means nothing to torchbus verify, which forks its ranks on this machine:"
            " leave it out"
        )


def _parser() -> Parser:
    parser = Parser(
        "verify", DESCRIPTION, EXAMPLES, usage=USAGE, argument_default=argparse.SUPPRESS
    )
    add = parser.add_argument
    add(
        "program",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT [ARG]...",
        help="the script, and its own arguments",
    )
    add(
        "-m",
        dest="module",
        action="store_true",
        default=False,
        help="SCRIPT is the name of a module, as with python -m",
    )
    add(
        "--steps",
        type=_steps,
        default=20,
        metavar="N",
        help="real steps of each optimizer, or all (default: 20)",
    )
    add("--float64", action="store_true", default=False, help="run both in double precision")
    add("--json", action="store_true", default=False, help="print a JSON object instead of text")
    add(
        "--html",
        type=Path,
        default=None,
        metavar="PAGE",
        help="also write a page with the difference of each step and tensor",
    )
    session_options.add_session_options(parser)
    _add_options_of_plugins(parser)
    return parser


def _add_options_of_plugins(parser: Parser) -> None:
    known = {"logger"}
    for entry in sorted(entry_points(group="torchbus.option"), key=lambda one: one.name):
        if entry.name not in known:
            known.add(entry.name)
            parser.add_argument(
                f"--{entry.name.replace('_', '-')}",
                dest=entry.name,
                type=session_options.literal,
                help=argparse.SUPPRESS,
            )


def _steps(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of steps: pass 1 or more, or all"
        )
    return int(text)


EVERY_S, ELSEWHERE_S = 0.5, 10.0


class ProgressLine:
    """Prints progress; a context manager, which completes the last line."""

    def __init__(self, steps: int | None, stream: IO[str]) -> None:
        self._steps, self._stream = steps, stream
        self._terminal = stream.isatty()
        self._name, self._begun_s, self._said_s = "", 0.0, time.monotonic()
        self._shown = False

    def show(self, name: str, steps: int) -> None:
        """Show the progress. Called often; prints rarely."""
        now = time.monotonic()
        if name != self._name:
            self._name, self._begun_s = name, now
        if now - self._said_s < (EVERY_S if self._terminal else ELSEWHERE_S):
            return
        self._said_s, self._shown = now, True
        end = "\x1b[K\r" if self._terminal else "\n"
        self._stream.write(f"{name}: {self._line(steps, now - self._begun_s)}{end}")
        self._stream.flush()

    def _line(self, steps: int, seconds: float) -> str:
        of = f" of {self._steps}" if self._steps else ""
        done = f"step {steps}{of}, {seconds:.0f} s"
        if not steps and seconds > ELSEWHERE_S:
            return f"{done} without a step yet (--steps 2 needs fewer)"
        if not steps or not self._steps or steps >= self._steps:
            return done
        return f"{done}, about {seconds / steps * (self._steps - steps):.0f} s remain"

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown and self._terminal:
            self._stream.write("\x1b[K")
