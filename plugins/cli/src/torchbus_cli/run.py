"""``torchbus run`` runs a script or module in a session, without an edit."""

from __future__ import annotations

import sys

from torchbus.plugin import TorchbusError

from torchbus_cli.parser import complain
from torchbus_cli.session_options import program_and_session, session_parser

USAGE = """torchbus run [OPTION]... SCRIPT [ARG]...
       torchbus run [OPTION]... -m MODULE [ARG]..."""
DESCRIPTION = """Run a training script on several devices without an edit: as
`python SCRIPT ARG...` does, but inside a session.

Put options before the script; everything after it goes to the script. The exit status is the
script's. The command forks the other ranks before the script begins, or starts them by running the
same command again. Only rank 0 prints.
"""
EXAMPLES = """  torchbus run train.py --lr 0.1              on all visible GPUs, or one rank on CPU
  torchbus run --devices 2 train.py           two ranks (strategy ddp)
  torchbus run --devices 0,2 -m pkg.train     GPUs 0 and 2, a module
  torchbus run --accelerator cpu --devices 4 --print-all-ranks train.py
  torchbus run --logger local -o log_dir=runs/a -o sync_loss=False train.py
  torchbus run --config run.toml train.py     options from a file
  torchbus run --verbose train.py             explains the session after the first epoch
"""


def main(argv: list[str]) -> int:
    """Run a training script on several devices without an edit."""
    parser = session_parser("run", DESCRIPTION, EXAMPLES, usage=USAGE)
    try:
        found, wanted = program_and_session(parser, argv)
        active = found.start(wanted)
    except SyntaxError as error:
        sys.excepthook(SyntaxError, error.with_traceback(None), None)
        return 1
    except TorchbusError as error:
        return complain("torchbus run", error)
    found.run(active)
    return 0
