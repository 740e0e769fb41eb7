"""``torchbus doctor`` says what this machine has, what is wrong, and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

import torchbus
from torchbus._cli.doctor import accelerators, environment, loopback, machine, packages, self_test
from torchbus._cli.doctor.finding import Finding
from torchbus._cli.parser import Parser

DESCRIPTION = """Say what this machine has for training, what is wrong with it, and what to do.

The command checks Python, processors, torch, GPUs, communication, launcher variables and plugins.
Then it trains a tiny model on two ranks and compares it with one process. The exit status is 1 if
something is wrong, otherwise 0. It hides the values of variables that look like secrets.
"""
EXAMPLES = """  torchbus doctor
  torchbus doctor --quick                     without the two-rank self-test
  torchbus doctor --json > report.json        to attach to a bug report
  srun -n 4 torchbus doctor --quick           what each rank of a cluster job sees
"""


def main(argv: list[str]) -> int:
    """Say what is wrong with this machine for training, and what to do."""
    parser = Parser("doctor", DESCRIPTION, EXAMPLES)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--quick", action="store_true", help="skip the self-test, which takes some seconds"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds that the self-test may take (default 120)",
    )
    given = parser.parse(argv)
    found = []
    for finding in _look(None if given.quick else given.timeout):
        found.append(finding)
        if not given.json:
            print(finding.text(), flush=True)
    wrong = sum(bool(finding.problems) for finding in found)
    print(_as_json(found) if given.json else f"\n{_summary(wrong)}")
    return 1 if wrong else 0


def _look(self_test_s: float | None) -> Iterator[Finding]:
    yield Finding("torchbus", {"version": torchbus.__version__})
    yield from machine.look()
    yield from accelerators.look()
    yield from environment.look()
    yield from loopback.look()
    yield from packages.look()
    if self_test_s is not None:
        yield self_test.run(self_test_s)


def _summary(wrong: int) -> str:
    return (
        f"{wrong} of these {'is' if wrong == 1 else 'are'} wrong: see the lines marked WRONG"
        if wrong
        else "nothing is wrong"
    )


def _as_json(found: list[Finding]) -> str:
    findings = {
        finding.name: {name: value for name, value in asdict(finding).items() if name != "name"}
        for finding in found
    }
    return json.dumps(
        {"ok": not any(finding.problems for finding in found), "findings": findings}, indent=2
    )
