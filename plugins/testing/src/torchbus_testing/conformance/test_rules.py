"""The rules as tests of pytest, for the subject that its options name.

The options are those of ``torchbus_pytest``. Without a subject, all tests are skipped.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from torchbus_testing.conformance import check
from torchbus_testing.conformance.check import CaseOutcome
from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.rules import RULES, find
from torchbus_testing.conformance.subject import (
    DEFAULT_STRATEGY,
    Subject,
    beside,
    other_plugins,
    other_strategies,
    tried_with,
)

PAIRED = "evaluation"
"""The rule with which the subject is tried beside each other plugin or strategy."""
RecordProperty = Callable[[str, object], None]


def named_subject(config: pytest.Config) -> Subject | None:
    """Return the subject that the command line names, or None."""
    strategy = config.getoption("--torchbus-strategy")
    plugin = config.getoption("--torchbus-plugin")
    if not strategy and not plugin:
        return None
    options = dict(_option(text) for text in config.getoption("--torchbus-option"))
    plugins = (plugin,) if plugin else ()
    return Subject(strategy or DEFAULT_STRATEGY, plugins, options, bool(plugin and options))


def _option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def refuse_wrong_names(subject: Subject) -> None:
    """Raise CollectError for an invalid subject, whose error a rule would treat as a refusal."""
    try:
        subject.session(2, {}, ())
    except Exception as error:
        raise pytest.Collector.CollectError(f"{subject}: {error}") from error


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    subject = named_subject(metafunc.config)
    if subject is not None:
        refuse_wrong_names(subject)
    ranks = [int(one) for one in metafunc.config.getoption("--torchbus-ranks").split(",")]
    if "rule" in metafunc.fixturenames:
        metafunc.parametrize("rule", RULES if subject else [], ids=str)
    if "ranks" in metafunc.fixturenames:
        metafunc.parametrize("ranks", ranks)
    if "plugin" in metafunc.fixturenames:
        names = other_plugins(subject) if subject else []
        metafunc.parametrize(
            ("plugin", "options"),
            [(name, options) for name in names for options in tried_with(name)],
            ids=lambda value: value if isinstance(value, str) else ",".join(value),
        )
    if "strategy" in metafunc.fixturenames:
        tried = subject is not None and subject.plugins
        metafunc.parametrize("strategy", other_strategies(subject) if subject and tried else [])


@pytest.fixture
def subject(pytestconfig: pytest.Config) -> Subject:
    found = named_subject(pytestconfig)
    if found is None:
        pytest.skip("name a subject: --torchbus-strategy NAME or --torchbus-plugin NAME")
    return found


@pytest.fixture
def dtype(pytestconfig: pytest.Config) -> str:
    return str(pytestconfig.getoption("--torchbus-dtype"))


def judge(outcome: CaseOutcome, report: RecordProperty) -> None:
    """Fail with the problems, skip what can't be tried, or pass and report a refusal."""
    if outcome.missing:
        pytest.skip(str(outcome))
    if outcome.problems:
        pytest.fail(str(outcome), pytrace=False)
    if outcome.refused:
        report("torchbus refused", outcome.refused)


def test_rule(
    rule: Rule, ranks: int, subject: Subject, dtype: str, record_property: RecordProperty
) -> None:
    judge(check(rule, subject, ranks, dtype=dtype), record_property)


def test_beside_plugin(
    plugin: str,
    options: dict[str, object],
    subject: Subject,
    dtype: str,
    record_property: RecordProperty,
) -> None:
    """Try the subject beside another plugin, with each set of that plugin's options."""
    pair = beside(subject, plugin, options)
    judge(check(find(PAIRED), pair, dtype=dtype), record_property)


def test_with_strategy(
    strategy: str, subject: Subject, dtype: str, record_property: RecordProperty
) -> None:
    """Try the subject's plugin with each other installed strategy."""
    pair = dataclasses.replace(subject, strategy=strategy)
    judge(check(find(PAIRED), pair, dtype=dtype), record_property)
