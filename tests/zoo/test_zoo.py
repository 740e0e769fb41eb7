"""Every loop of the zoo, on 2 and 3 ranks, under the one line or under `torchbus run`, against one
plain process.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import Run, run_command, run_plain, run_session
from judgement import judge
from loop import Loop, scripts
from pairs import covering, mixed
from zoo import ZOO

# each loop in one of them; a rank that is a script imports torch anew
QUICK_FORMS = ("fork", "fork", None, "script", None) + 10 * ("fork", None, None)


Row = tuple[int, str, int]


@dataclass(frozen=True)
class Case:
    loop: Loop
    form: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.loop.name}-{self.form}-{self.ranks}"

    def run(self, folder: Path) -> Run:
        if self.form == "command":
            return run_command(self.loop, folder, self.ranks)
        return run_session(self.loop, folder, self.ranks, launch=self.form)


def other_start(number: int) -> str:
    """`torchbus run` for one half of the loops, and for the other half ranks that run the script."""
    return "command" if ZOO[number].setup_first or number % 2 else "script"


def quick_rows() -> Iterator[Row]:
    for number in range(len(ZOO)):
        form = QUICK_FORMS[number % len(QUICK_FORMS)]
        yield from [(number, form, 2)] if form else []
        yield from [(number, "fork", 3)] if number % 30 == 15 else []


def make_cases() -> list[object]:
    """Each loop in forks and with its other start, and with 2 and 3 ranks."""
    quick = list(quick_rows())
    every = [
        (number, form, ranks)
        for number in range(len(ZOO))
        for form in ("fork", other_start(number))
        for ranks in (2, 3)
    ]
    slow = covering(mixed(every), quick)
    return [make_case(*row) for row in quick] + [
        make_case(*row, marks=pytest.mark.slow) for row in slow
    ]


def make_case(number: int, form: str, ranks: int, **words: object) -> object:
    loop = ZOO[number].under_command() if form == "command" else ZOO[number]
    case = Case(loop, form, ranks)
    return pytest.param(case, id=str(case), **words)


@pytest.fixture(scope="session")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Case], Run]]:
    """The runs of all cases that were selected, several at a time: most of a run is one process
    after another importing torch.
    """
    parameters = [
        item.callspec.params for item in request.session.items if hasattr(item, "callspec")
    ]
    cases = [values["case"] for values in parameters if isinstance(values.get("case"), Case)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {
            str(case): pool.submit(case.run, tmp_path_factory.mktemp(str(case))) for case in cases
        }
        yield lambda case: futures[str(case)].result()
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Loop, int], Run]:
    """The run of one process, made once for each loop and number of ranks."""

    @functools.cache
    def run(name: str, batches: int) -> Run:
        row = next(row for row in ZOO if row.name == name)
        result = run_plain(row, tmp_path_factory.mktemp(f"{name}-plain"), batches=batches)
        assert result.status == 0, result.stderr
        return result

    return lambda loop, ranks: run(loop.name, loop.of_one_process(ranks))


def report(problems: list[str]) -> str:
    return "\n".join(
        ["", *problems[:12], *([f"... {len(problems) - 12} more"] if len(problems) > 12 else [])]
    )


def test_every_script_has_a_row_and_every_exception_a_reason() -> None:
    assert sorted(loop.name for loop in ZOO) == sorted(path.stem for path in scripts())
    assert [loop.name for loop in ZOO if loop.relaxed and not loop.why] == []


def test_loops_never_mention_torchbus() -> None:
    """But for one, whose own loop divides its batches."""
    assert [path.name for path in scripts() if "torchbus" in path.read_text()] == [
        "sharded_items.py"
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", make_cases())
def test_loop(
    case: Case, runs: Callable[[Case], Run], reference: Callable[[Loop, int], Run]
) -> None:
    problems = judge(case.loop, runs(case), reference(case.loop, case.ranks), case.ranks)
    assert not problems, report(problems)


CONTROLS = [
    pytest.param(loop, id=loop.name, marks=[pytest.mark.slow] if index % 12 else [])
    for index, loop in enumerate(ZOO)
]


@pytest.mark.parametrize("loop", CONTROLS)
def test_control(loop: Loop, reference: Callable[[Loop, int], Run], tmp_path: Path) -> None:
    """Processes that nothing synchronises fail every loop, and each of the checks that are about
    division.
    """
    run = run_plain(loop, tmp_path, copies=2)
    assert run.status == 0, run.stderr
    problems = judge(loop, run, reference(loop, 2), 2)
    letters = {problem[:3] for problem in problems}
    expected = {"(-)"} if loop.refused else {"(d)"}
    if loop.divided and not loop.refused:
        expected |= {"(c)"} | ({"(b)"} if loop.exact and loop.of_one_process(2) == 2 else set())
    assert letters >= expected, report(problems)
