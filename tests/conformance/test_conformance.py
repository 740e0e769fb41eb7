"""The conformance kit: our own strategies and plugins hold its rules, and strategies that each
forget one thing break the rule about it.
"""

from __future__ import annotations

import dataclasses
import itertools
import runpy
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from engines import LIMIT_S, OF_PIPELINE
from pairs import covering, mixed

from torchbus_testing.conformance import check
from torchbus_testing.conformance.rules import RULES, find
from torchbus_testing.conformance.subject import Subject, other_plugins
from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import run, run_script

ROOT = Path(__file__).parents[2]
SLOW = pytest.mark.slow
STRATEGIES = ("ddp", "dp", "ddp_sharded", "fsdp", "pipeline")
QUICK = {
    "ddp": ("checkpoint", "random-numbers"),
    "dp": ("two-optimizers",),
    "ddp_sharded": ("state-dict",),
    "fsdp": ("ragged-end",),
    "pipeline": ("one-process",),
}
REFUSED: dict[str, dict[str, str]] = {
    "ddp": {},
    "dp": {},
    "ddp_sharded": {"script-lbfgs-closure": "with LBFGS"},
    "fsdp": {
        "other-methods": "mixes parts of parameters or gradients with whole tensors",
        "script-lbfgs-closure": "with LBFGS",
    },
    "pipeline": OF_PIPELINE,
}
"""What each strategy refuses, and words of the message."""
BY_HAND = {"AllReduce": ("no-sync", "accumulate"), "Inherits": ()}
"""By strategy, what it refuses."""
QUICK_BY_HAND = dict.fromkeys(BY_HAND, ("ragged-end",))
BROKEN = {
    "ForgetsWeights": ("ragged-end", "differs from one process"),
    "ComparesNothing": ("divergence", "without an error or warning"),
    "DrawsAlike": ("random-numbers", "drew the same noise in training as rank 0"),
    "SavesHalf": ("checkpoint", "would not be complete"),
}
BROKEN_TOO = {
    "CountsTheRepeated": ("not-a-number", "differs from one process"),
    "KeepsItsLoss": ("loss-value", "differs between rank 0 and rank 1"),
    "KeepsItsValues": ("first-values", "differs between rank 0 and rank 1"),
    "ForgetsTheOld": ("own-windows", "differs from one process"),
    "TakesThemOnce": ("late-parameters", "differs between rank 0 and rank 1"),
    "ShowsItsOwn": ("explain", "models listed differs from one process"),
    "LeavesItsChange": ("unchanged", "torch.stack"),
    "EvaluatesUnlike": ("random-numbers", "evaluation draws the same on all ranks"),
}
PLUGINS = other_plugins(Subject())
NEED_AN_OPTION = ("tensor_layers",)
"""Named without one, such as tp=, they are refused."""
PAIRED = ("ragged-end", "evaluation", "events", "unchanged")


def cases(strategies: Iterable[str], quick: Mapping[str, Iterable[str]]) -> list[object]:
    """Each strategy and rule, with 2 or 3 ranks; by strategy, the rules that the quick suite has."""
    first = [(strategy, name, 2) for strategy, names in quick.items() for name in names]
    every = mixed(itertools.product(strategies, (rule.name for rule in RULES), (2, 3)))
    slow = [pytest.param(*row, marks=SLOW) for row in covering(every, first)]
    return [*first, *slow]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("strategy", "rule", "ranks"), cases(STRATEGIES, QUICK))
def test_our_strategies_hold_the_rules(strategy: str, rule: str, ranks: int) -> None:
    outcome = check(find(rule), Subject(strategy), ranks, limit_s=LIMIT_S)
    assert outcome.holds, str(outcome)
    words = REFUSED[strategy].get(rule, "")
    assert bool(words) == bool(outcome.refused) and words in outcome.refused, str(outcome)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("strategy", "rule", "ranks"), cases(["horovod"], {}))
def test_horovod_holds_the_rules(strategy: str, rule: str, ranks: int) -> None:
    pytest.importorskip("horovod", reason="Horovod is not built: see contrib/horovod/README.md")
    outcome = check(find(rule), Subject(strategy), ranks, limit_s=LIMIT_S)
    assert outcome.holds and not outcome.refused, str(outcome)


@pytest.mark.timeout(300)
def test_the_engine_for_tpus_holds_a_rule_on_a_cpu() -> None:
    outcome = check(find("ragged-end"), Subject("strategies_without_devices:TPUsEngine"))
    assert outcome.holds and not outcome.refused, str(outcome)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("strategy", "rule", "ranks"), cases(BY_HAND, QUICK_BY_HAND))
def test_a_correct_strategy_by_hand_holds_them(strategy: str, rule: str, ranks: int) -> None:
    outcome = check(find(rule), Subject(f"strategies_by_hand:{strategy}"), ranks, limit_s=LIMIT_S)
    assert outcome.holds, str(outcome)
    assert bool(outcome.refused) == (rule in BY_HAND[strategy]), str(outcome)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("broken", "name", "words"),
    [pytest.param(broken, *found) for broken, found in BROKEN.items()]
    + [pytest.param(broken, *found, marks=SLOW) for broken, found in BROKEN_TOO.items()],
)
def test_a_strategy_that_forgets_something_breaks_the_rule_about_it(
    broken: str, name: str, words: str
) -> None:
    outcome = check(find(name), Subject(f"strategies_broken:{broken}"))
    text = str(outcome)
    assert not outcome.holds and words in text, text
    assert f"rule {name!r} is broken" in text
    assert find(name).says in text and find(name).remedy in text


def pairs_of_plugins() -> list[object]:
    first = [("activation", PAIRED[0], "ddp")]
    every = mixed(itertools.product(PLUGINS, PAIRED, STRATEGIES))
    return [*first, *(pytest.param(*row, marks=SLOW) for row in covering(every, first))]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("plugin", "name", "strategy"), pairs_of_plugins())
def test_our_plugins_change_no_numbers_by_themselves(plugin: str, name: str, strategy: str) -> None:
    """Beside other strategies than ddp, a plugin may be refused, and never gives other numbers."""
    outcome = check(find(name), Subject(strategy, (plugin,)), limit_s=LIMIT_S)
    if plugin in NEED_AN_OPTION:
        assert outcome.refused, str(outcome)
        return
    assert outcome.holds, str(outcome)
    assert strategy != "ddp" or not outcome.refused, str(outcome)


def test_a_plugin_that_changes_numbers_is_found_unless_it_says_so() -> None:
    doubles = "strategies_broken:Doubles"
    rule = find("ragged-end")
    outcome = check(rule, Subject("ddp", (doubles,)))
    assert not outcome.holds and "differs from one process" in str(outcome)
    assert check(rule, Subject("ddp", (doubles,), numbers_of_its_local=True)).holds


def test_a_plugin_with_numbers_of_its_own_goes_on_from_a_checkpoint() -> None:
    subject = Subject("ddp", ("average",), {"ema_decay": 0.9}, numbers_of_its_local=True)
    outcome = check(find("checkpoint"), subject)
    assert outcome.holds, str(outcome)


def test_a_missing_plugin_is_named() -> None:
    rule = dataclasses.replace(find("log"), needs=("nowhere",))
    outcome = check(rule, Subject())
    assert not outcome.holds and str(outcome).endswith("not tried without torchbus's nowhere")


@SLOW
@pytest.mark.timeout(300)
def test_the_options_of_pytest(tmp_path: Path) -> None:
    """Without a path only the kit runs. A refusal passes and is listed; a wrong number fails."""
    words = ["--torchbus-strategy", "strategies_broken:ForgetsWeights", "--torchbus-ranks", "2"]
    chosen = ["-k", "ragged-end or no-sync", "-p", "no:cacheprovider"]
    result = run(
        [sys.executable, "-m", "pytest", *words, *chosen],
        env={"PYTHONPATH": str(ROOT / "tests" / "conformance")},
        cwd=tmp_path,
        timeout_s=280,
    )
    assert result.status == 1 and "1 failed, 1 passed" in result.stdout, result.stdout
    assert find("ragged-end").remedy in " ".join(result.stdout.split())
    assert "AllReduce takes neither s.no_sync()" in result.stdout.split("refused, not wrong")[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_strategy", "unknown strategy 'no_such_strategy'"),
        ("no_such_module:Thing", "No module named 'no_such_module'"),
        ("strategies_broken:Missing", "has no attribute 'Missing'"),
    ],
)
def test_a_wrong_name_is_no_refusal(tmp_path: Path, name: str, words: str) -> None:
    options = ["--torchbus-strategy", name, "-k", "explain"]
    script = f"""
        import sys
        import pytest
        sys.path.append({str(ROOT / "tests" / "conformance")!r})
        sys.exit(pytest.main({options}))
    """
    result = fork_script(script, cwd=tmp_path, timeout_s=100)
    assert result.status == 2 and "no tests ran" not in result.stdout
    assert f"strategy {name!r}: " in result.stdout and words in result.stdout, result.stdout
    assert "Traceback" not in result.stdout


def test_the_page_lists_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    text = (ROOT / "docs" / "conformance-rules.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(ROOT / "docs" / "generate_rules.py"))["page"]() == text
    assert len({rule.name for rule in RULES}) == len(RULES) >= 35


def test_pytest_alone_imports_neither_torchbus_nor_torch() -> None:
    result = run_script("""
        import sys
        import torchbus_pytest
        print(torchbus_pytest.rules_file().name, {"torch", "torchbus", "pytest"} & set(sys.modules))
    """)
    assert result.ok().stdout == "test_rules.py set()\n"
