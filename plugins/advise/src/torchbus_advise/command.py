"""``torchbus advise``: which strategy a script needs, before the machines are rented."""

from __future__ import annotations

import argparse
import sys

from torchbus.plugin import TorchbusError, UsageError

from torchbus_advise.page import Page
from torchbus_advise.plans import installed
from torchbus_advise.rows import GPUS
from torchbus_advise.trial import NoStep, TrialRequest, survey
from torchbus_cli.parser import Parser, complain
from torchbus_redaction.redactor import redacted_output

USAGE = """torchbus advise [OPTION]... SCRIPT [ARG]...
       torchbus advise [OPTION]... -m MODULE [ARG]..."""
DESCRIPTION = """Say which strategy a training script needs, with the memory and speed of each.

The first steps run in a separate process: with fake tensors, which need no memory and compute
nothing, and again with real values if they fit this machine. torch.save writes nothing meanwhile.
Options come before the script; everything after it is the script's own. Exit status: 0; 2 for a
wrong call; 3 if the script makes no step.
"""
EXAMPLES = """  torchbus advise train.py --lr 0.1                  on 1, 2, 4 and 8 A100s of 80 GB
  torchbus advise --devices 8 --gpu h100 train.py
  torchbus advise --devices 8 --gpu-memory 24 --interconnect 64 train.py
  torchbus advise --devices 8 --num-nodes 4 --tensors fake -m pkg.train
"""
NO_VERDICT = 3


def main(argv: list[str]) -> int:
    """Say which strategy a script needs, with memory and speed of each."""
    parser = _parser()
    given = parser.parse(argv)
    argv = given.program[1:] if given.program[:1] == ["--"] else given.program
    if not argv:
        parser.error("which script? write torchbus advise [OPTION]... SCRIPT [ARG]...")
    try:
        page = _page(given, argv)
        print(page.json() if given.json else page.text())
    except NoStep as error:
        print(redacted_output(error.trace), file=sys.stderr, end="")
        complain("torchbus advise", error)
        return NO_VERDICT
    except TorchbusError as error:
        return complain("torchbus advise", error)
    return 0


def _page(given: argparse.Namespace, argv: list[str]) -> Page:
    name, *args = argv
    there = installed()
    request = TrialRequest(name, args, given.module, True, _positive(given.steps, "--steps"))
    devices = [_positive(given.devices, "--devices")] if given.devices is not None else [1, 2, 4, 8]
    nodes = _positive(given.num_nodes, "--num-nodes")
    found = survey(request, there, given.tensors, given.timeout, _say)
    gpu = GPUS[given.gpu].changed(given.gpu_memory, given.interconnect)
    return Page(found, there, gpu, devices, nodes)


def _positive(number: int, option: str) -> int:
    if number < 1:
        raise UsageError(f"{option} {number}: it must be 1 or more")
    return number


def _say(text: str) -> None:
    print(f"torchbus advise: {text}", file=sys.stderr, flush=True)


def _parser() -> Parser:
    parser = Parser("advise", DESCRIPTION, EXAMPLES, usage=USAGE)
    add = parser.add_argument
    add("program", nargs=argparse.REMAINDER, metavar="SCRIPT [ARG]...", help="the script")
    add("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
    add("--devices", type=int, metavar="N", help="GPUs of a machine (default: 1, 2, 4 and 8)")
    add("--num-nodes", type=int, default=1, metavar="N", help="machines (default 1)")
    add("--gpu", choices=sorted(GPUS), default="a100", help="whose figures count (default a100)")
    add("--gpu-memory", type=float, metavar="GIB", help="instead of the memory of that GPU")
    add("--interconnect", type=float, metavar="GB/S", help="between GPUs, both directions together")
    add("--steps", type=int, default=2, metavar="N", help="of each optimizer (default 2)")
    add("--tensors", choices=("auto", "fake", "real"), default="auto", help="default auto: both")
    add("--timeout", type=float, default=600, metavar="S", help="of each run (default 600)")
    add("--json", action="store_true", help="print one JSON object")
    return parser
