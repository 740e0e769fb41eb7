"""The conformance kit: the requirements on strategies and plugins, as executable rules.

For a strategy or a plugin of your own::

    pytest --pyargs torchbus_testing.conformance --torchbus-strategy my_strategy
    pytest --pyargs torchbus_testing.conformance --torchbus-plugin my_package.module:MyPlugin

Or, in tests of your own::

    from torchbus_testing.conformance.rules import RULES
    from torchbus_testing.conformance.subject import Subject
    from torchbus_testing.conformance import check

    @pytest.mark.parametrize("rule", RULES, ids=str)
    def test_rule(rule):
        outcome = check(rule, Subject(strategy="my_strategy"), ranks=2)
        assert outcome.holds, str(outcome)

Each rule is a loop. It runs in real processes on several ranks, and in one process without
torchbus, in float64. A rule that may be refused holds if the session refuses clearly
(``Unsupported``, ``UsageError``). A wrong number breaks any rule. The kit works only on Linux,
because it forks processes.
"""

from __future__ import annotations

from torchbus_testing.conformance.check import CaseOutcome, check
from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.rules import RULES
from torchbus_testing.conformance.subject import Subject, other_plugins, other_strategies

__all__ = [
    "RULES",
    "CaseOutcome",
    "Rule",
    "Subject",
    "check",
    "other_plugins",
    "other_strategies",
]
