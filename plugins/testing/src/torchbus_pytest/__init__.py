"""Options of pytest for torchbus's conformance kit.

pytest loads this module wherever torchbus is installed. So it imports neither torchbus nor torch,
and does nothing unless an option is given.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest import Config, Parser, TerminalReporter

REFUSED = "torchbus refused"
"""The property of a test whose rule was refused."""


def pytest_addoption(parser: Parser) -> None:
    group = parser.getgroup(
        "torchbus", "torchbus: try a strategy or a plugin (docs/conformance.md)"
    )
    group.addoption(
        "--torchbus-strategy", metavar="NAME", help="an installed strategy, or module:attribute"
    )
    group.addoption(
        "--torchbus-plugin", metavar="NAME", help="an installed plugin, or module:attribute"
    )
    group.addoption(
        "--torchbus-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an option of it; the value is JSON, or else a word; may be given several times",
    )
    group.addoption("--torchbus-ranks", metavar="N,M", default="2,3", help="numbers of ranks (2,3)")
    group.addoption(
        "--torchbus-dtype", metavar="DTYPE", default="float64", help="what the ranks compute in"
    )


def pytest_configure(config: Config) -> None:
    """Run the kit if the command line names a subject and no file."""
    named = config.getoption("--torchbus-strategy") or config.getoption("--torchbus-plugin")
    if named and config.args_source is not config.ArgsSource.ARGS:
        config.args = [str(rules_file())]


def rules_file() -> Path:
    """Return the file of the kit's tests, found without importing torchbus."""
    found = importlib.util.find_spec("torchbus_testing")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "conformance" / "test_rules.py"


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """List the refusals, which count as passed tests."""
    reported = [
        f"{report.nodeid.rpartition('::')[2]}: {value}"
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == REFUSED
    ]
    if reported:
        terminalreporter.section("torchbus: refused, not wrong")
        for line in reported:
            terminalreporter.line(line)
