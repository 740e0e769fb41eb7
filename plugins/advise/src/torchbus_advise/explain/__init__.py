"""``torchbus explain``: what a session does to a script, and the plain PyTorch that would do the
same."""

from __future__ import annotations

import sys

from torchbus.plugin import TorchbusError

from torchbus_advise.explain.own_session import NAME, Explainer, has_local_session, run_in_its_local
from torchbus_cli.parser import complain
from torchbus_cli.session_options import program_and_session, session_parser

USAGE = """torchbus explain [OPTION]... SCRIPT [ARG]...
       torchbus explain [OPTION]... -m MODULE [ARG]..."""
DESCRIPTION = """Say what a session does to a script, without training.

It runs up to its first backward. Options are those of `torchbus run`. A script that opens a session
is explained with that session.
Below s.explain() stands the plain PyTorch that would do the same: see docs/by-hand.md.
Exit status: 0; 1 if the script failed; 2 for a wrong call; 3 if it never calls backward.
"""
EXAMPLES = """  torchbus explain --devices 2 train.py --lr 0.1
  torchbus explain --strategy fsdp --devices 4 -o precision=bf16-mixed train.py
"""
NO_VERDICT = 3


def main(argv: list[str]) -> int:
    """Say what a session does to a script, and how to do it by hand."""
    explainer = Explainer()
    parser = session_parser("explain", DESCRIPTION, EXAMPLES, usage=USAGE)
    try:
        found, wanted = program_and_session(parser, argv, ranks_on_cpu=2)
        if has_local_session(found):
            run_in_its_local(found, explainer)
        else:
            wanted.add_plugin(explainer, NAME)
            found.run(found.start(wanted))
    except SyntaxError as error:
        sys.excepthook(SyntaxError, error.with_traceback(None), None)
        return 1
    except TorchbusError as error:
        return complain("torchbus explain", error)
    except SystemExit:
        if not explainer.has_explained:
            raise
    if explainer.has_explained:
        return 0
    print("torchbus explain: the script ended and never called backward", file=sys.stderr)
    return NO_VERDICT
