"""Plugins with the options that reach their code, many in one session: pairs change no number.

Each row is a strategy and a choice of plugins. Any two plugins, and each with each strategy, are
together in at least one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import pytest
from engines import LIMIT_S
from pairs import covering

from torchbus_testing.conformance import check
from torchbus_testing.conformance.rules import find
from torchbus_testing.conformance.subject import Subject, beside, other_plugins, tried_with

Row: TypeAlias = tuple[str | int | None, ...]
STRATEGIES = ("ddp", "dp", "ddp_sharded", "fsdp", "pipeline")
ALONE = ("neptune_one_run", "tensor_layers")
"""Its library takes a minute to import; named without tp= it is refused."""
REFUSED: dict[str, tuple[str, ...]] = {}
"""By strategy, plugins that it refuses with these options."""
CASES = {name: tried_with(name) for name in other_plugins(Subject()) if name not in ALONE}
NEW = {
    *("fast_dev_run", "limit_train_batches", "limit_eval_batches", "overfit_batches", "max_steps"),
    *("max_time", "detect_anomaly", "deterministic", "stop_on_nan", "load_best", "warmup_steps"),
    *("stopping_threshold", "log_grad_norms"),
}


def choices(count: int) -> Iterable[Row]:
    """A strategy, and by plugin the number of its options or None, about every second one."""
    draw = random.Random(0)
    for number in range(count):
        strategy = STRATEGIES[number % len(STRATEGIES)]
        yield (strategy, *(_choice(draw, strategy, name) for name in CASES))


def _choice(draw: random.Random, strategy: str, name: str) -> int | None:
    is_off = draw.random() < 0.4 or name in REFUSED.get(strategy, ())
    return None if is_off else draw.randrange(len(CASES[name]))


def chosen(row: Row) -> Mapping[str, Mapping[str, object]]:
    numbers = zip(CASES, row[1:], strict=True)
    return {name: CASES[name][number] for name, number in numbers if isinstance(number, int)}


def holds(
    strategy: str, plugins: Mapping[str, Mapping[str, object]], limit_s: float = LIMIT_S
) -> None:
    subject = Subject(strategy)
    for name, options in plugins.items():
        subject = beside(subject, name, options)
    outcome = check(find("evaluation"), subject, limit_s=limit_s)
    assert outcome.holds and not outcome.refused, f"{outcome}\n{subject.session_options}"


def test_the_options_that_change_a_loops_course_are_among_those_tried() -> None:
    tried = {option for cases in CASES.values() for options in cases for option in options}
    assert tried >= NEW


@pytest.mark.timeout(300)
def test_a_few_together_give_the_numbers_of_one_rank() -> None:
    few = {name: CASES[name][-1] for name in ("limits", "earlystop", "log", "nan", "scale")}
    holds("ddp", few)


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("row", covering(list(choices(300))), ids=lambda row: row[0])
def test_many_together_give_the_numbers_of_one_rank(row: Row) -> None:
    """About twenty plugins import many libraries, which takes minutes on a busy machine."""
    holds(str(row[0]), chosen(row), limit_s=900.0)
