"""The loops of the zoo on two ranks under dp, fsdp, ddp_sharded and, where it is built, horovod, against
one process: dp with the very same batch, the others with the batches of all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from harness import run_plain, run_session
from judgement import judge
from zoo import ZOO
from zoo_strategies import NOT_EXACT_UNDER_DP, OPTIONS, REFUSED, STRATEGIES, under

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "corpus.md"
QUICK = {
    "dp": ("contrastive", "get_batch", "loader_subclass"),
    "fsdp": ("encoder_decoder", "expert_routing", "batch_branch"),
    "ddp_sharded": ("gan", "lbfgs_closure"),
    "horovod": ("gan",),
}
NOT_BUILT = pytest.mark.skipif(
    find_spec("horovod") is None, reason="Horovod is not built: see contrib/horovod/README.md"
)


def cases() -> Iterator[object]:
    for strategy in STRATEGIES:
        for loop in ZOO:
            marks = [] if loop.name in QUICK[strategy] else [pytest.mark.slow]
            marks += [NOT_BUILT] if strategy == "horovod" else []
            yield pytest.param(strategy, loop, id=f"{strategy}-{loop.name}", marks=marks)


@pytest.mark.share(2)
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("strategy", "loop"), list(cases()))
def test_loop(strategy, loop, tmp_path):
    row = under(strategy, loop)
    reference = run_plain(row, tmp_path / "plain", batches=row.of_one_process(2))
    assert reference.status == 0, reference.stderr
    problems = judge(row, run_session(row, tmp_path / "session", 2, launch="fork"), reference, 2)
    assert not problems, "\n".join(problems[:12])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "options", "name", "words"),
    [
        (
            "dp",
            {"batch_dim": 1},
            "rnn_carried_hidden",
            "output 0 of RNNModel has the shapes (10, 11), (10, 11) on the ranks, which have 2, 2",
        ),
    ],
)
def test_with_other_options_it_is_refused(strategy, options, name, words, tmp_path):
    row = next(loop for loop in ZOO if loop.name == name)
    run = run_session(
        replace(row, options={"strategy": strategy, **options}), tmp_path, 2, launch="fork"
    )
    assert run.status and words in run.stderr


def test_docs_list_what_is_refused():
    """Rows such as | what the loop has | fsdp, ddp_sharded | `words of the message` |."""
    section = PAGE.read_text("utf-8").partition("\n## Refused loops\n")[2]
    rows = re.findall(r"^\| .+ \| ([\w, ]+) \| `(.+)` \|$", section, re.MULTILINE)
    listed = [(strategy, words) for names, words in rows for strategy in names.split(", ")]
    refused = {(strategy, words) for strategy in REFUSED for words in REFUSED[strategy].values()}
    assert sorted(listed) == sorted(refused)


def test_every_name_in_the_tables_is_a_loop():
    named = {
        name
        for table in (*REFUSED.values(), *OPTIONS.values(), NOT_EXACT_UNDER_DP)
        for name in table
    }
    assert named <= {loop.name for loop in ZOO}
