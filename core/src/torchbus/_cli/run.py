"""``torchbus run``: a script or module in a session, without an edit."""

from __future__ import annotations

import argparse
import ast
import sys
from typing import Any

from torchbus._cli import program
from torchbus._cli.parser import Parser, complain
from torchbus._cli.program import Program
from torchbus.errors import TorchbusError, UsageError
from torchbus.session import Session

USAGE = """torchbus run [OPTION]... SCRIPT [ARG]...
       torchbus run [OPTION]... -m MODULE [ARG]..."""
DESCRIPTION = """Run a training script on several devices without an edit: as `python SCRIPT ARG...` would, inside a session.

Options come before the script; everything after it is the script's own, untouched. The exit status is the script's.
The other ranks are forked before the script begins, or started by running the same command again; only rank 0 prints.
"""
EXAMPLES = """  torchbus run train.py --lr 0.1              on all visible GPUs, or one rank on CPU
  torchbus run --devices 2 train.py           two ranks (strategy ddp)
  torchbus run --devices 0,2 -m pkg.train     GPUs 0 and 2, a module
  torchbus run --accelerator cpu --devices 4 --print-all-ranks train.py
  torchbus run --logger local -o log_dir=runs/a -o sync_loss=False train.py
  torchbus run --verbose train.py             says after the first epoch what was found and done
"""


def main(argv: list[str]) -> int:
    """Run a training script on several devices without an edit."""
    parser = _parser()
    given = vars(parser.parse(argv))
    words = given.pop("program")
    if words[:1] == ["--"]:
        del words[0]
    if not words:
        parser.error("which script? write torchbus run [OPTION]... SCRIPT [ARG]...")
    try:
        found = _find(*words, by_module=given.pop("module"))
        active = _start(found, given)
    except SyntaxError as error:
        sys.excepthook(SyntaxError, error.with_traceback(None), None)
        return 1
    except TorchbusError as error:
        return complain("torchbus run", error)
    found.run(active)
    return 0


def _find(name: str, *args: str, by_module: bool) -> Program:
    return program.from_module(name, list(args)) if by_module else program.from_file(name, list(args))


def _start(found: Program, given: dict[str, Any]) -> Session:
    plugins, options = given.pop("plugins", []), dict(given.pop("options", []))
    twice = sorted(given.keys() & options.keys())
    if twice:
        raise UsageError(f"{twice[0]} is given twice, as an option of the command and by -o")
    active = Session(*plugins, **given, **options)
    active._context.under_command = True
    found.install()
    return active.start()


def _parser() -> Parser:
    parser = Parser("run", DESCRIPTION, EXAMPLES, usage=USAGE, argument_default=argparse.SUPPRESS)
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="SCRIPT [ARG]...", help="the script, and its own arguments")
    parser.add_argument("-m", dest="module", action="store_true", default=False, help="SCRIPT is the name of a module, as with python -m")
    add = parser.add_argument_group("options of the session").add_argument
    add("--strategy", type=literal, metavar="S", help="ddp, another installed one, or None; auto: ddp for more than one device")
    add("--devices", type=literal, metavar="D", help="number of ranks on this node, -1 or auto: all GPUs, or GPU numbers: 1,3")
    add("--accelerator", metavar="A", help="auto, cpu or gpu")
    add("--num-nodes", type=literal, metavar="N", help="number of machines; set MASTER_ADDR, MASTER_PORT and NODE_RANK on each")
    add("--launch", choices=("auto", "script", "fork"), help="start the other ranks by fork, or by running the command again; auto: fork where safe")
    add("--verbose", action="store_true", help="print explain() at the end of the first epoch")
    add("--print-all-ranks", action="store_true", help="let every rank print, each line with its rank")
    add("--logger", type=literal, action="append", metavar="L", help="local, or another installed logger; may be repeated")
    add("--plugin", dest="plugins", action="append", metavar="NAME", help="an installed plugin (see torchbus plugins); may be repeated")
    add("-o", "--option", dest="options", type=option, action="append", metavar="KEY=VALUE",
        help="any other option of session() or of a plugin; a VALUE that is a Python literal is one, else it is a string")  # fmt: skip
    return parser


def option(text: str) -> tuple[str, Any]:
    """KEY=VALUE as a pair."""
    key, equals, value = text.partition("=")
    if not (equals and key.isidentifier()):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE, as in -o sync_loss=False")
    return key, literal(value)


def literal(text: str) -> Any:
    """The value of a Python literal; any other text as it is."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
