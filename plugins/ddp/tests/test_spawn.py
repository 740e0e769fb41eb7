"""ddp_spawn, without what the field's has: a stale model, a return value that is lost, pickling
errors that name nothing, one fit.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from torchbus import session
from torchbus.errors import UsageError

from torchbus_testing.scripts import Result, run_script

SCRIPTS = Path(__file__).parent / "scripts"

HEAD = (SCRIPTS / "spawn_head.py").read_text()
TRAIN = (
    HEAD
    + """
if __name__ == "__main__":
    alone, its_optimizer = make()
    model, optimizer = make()
    weight = model.weight
    for time in range(2):
        steps(alone, its_optimizer, data())
        print(train(model, optimizer, data(), note="kept"))
        print(model.weight is weight, torch.allclose(weight, alone.weight, rtol=0, atol=1e-12))
"""
)
TOLD = "from rank 0\n{'ranks': 2, 'note': 'kept', 'agree': True}\nTrue True\n"


@pytest.fixture(scope="module")
def trained() -> Result:
    result = run_script(TRAIN, timeout_s=115)
    assert result.ok()
    return result


def test_the_main_model_that_stayed_stale_is_trained(trained):
    assert "True True\n" in trained.stdout


def test_the_return_value_that_was_lost_comes_back(trained):
    assert "{'ranks': 2, 'note': 'kept', 'agree': True}\n" in trained.stdout


def test_one_fit_only_is_as_many_as_one_likes(trained):
    assert trained.stdout == TOLD + TOLD and not trained.stderr


CULPRITS = SCRIPTS / "spawn_culprits.py"


@pytest.fixture(scope="module")
def culprits() -> list[str]:
    return run_script(CULPRITS).ok().stdout.splitlines()


@pytest.mark.slow
def test_what_can_not_be_pickled_is_named(culprits):
    ways = [
        line.replace("UsageError launch='spawn': ", "").partition(", so it can't be sent")[0]
        for line in culprits[:5]
    ]
    assert ways[0].startswith("model.transform.fn is a lambda defined at spawn_culprits.py:")
    assert ways[1].startswith(
        "model.transform.table['a'][1] is the function helper defined inside locals_of() at spawn_culprits.py:"
    )
    assert ways[2] == "model.transform.thing is an Inner, a class defined inside locals_of()"
    assert ways[3].startswith(
        "model.transform.part.keywords['key'] is a lambda defined at spawn_culprits.py:"
    )
    assert ways[4] == "model.transform.lock is a _thread.lock (cannot pickle '_thread.lock' object)"


@pytest.mark.slow
def test_functions_that_have_no_name_elsewhere_are_refused_and_others_need_no_decorator_line(
    culprits,
):
    *_, a_lambda, local, shape = culprits
    assert (
        "launch='spawn': a lambda defined at spawn_culprits.py:" in a_lambda
        and "can't be found by its name in another process" in a_lambda
    )
    assert (
        "the function helper defined inside locals_of() at spawn_culprits.py:" in local
        and "use launch='fork', which pickles nothing" in local
    )
    assert shape == "torch.Size([8, 3])"


@pytest.mark.slow
def test_a_failing_rank_ends_all():
    result = run_script(TRAIN.replace('print("from rank", s.rank)', "1 / (1 - s.rank)"))
    assert result.ok(1) and "[rank 1] ZeroDivisionError: division by zero" in result.stderr


def test_a_block_is_refused():
    with pytest.raises(
        UsageError,
        match="launch='spawn' runs a function in new processes, and there is none here: decorate one",
    ):
        session(strategy="ddp_spawn", devices=2, accelerator="cpu").start()


@pytest.mark.slow
def test_a_function_of_a_notebook_or_prompt_is_refused():
    source = (
        HEAD
        + "del __file__; __spec__ = None\nmodel, optimizer = make()\ntrain(model, optimizer, data())"
    )
    result = run_script(source)
    assert result.ok(1) and "the function train defined at script.py:" in result.stderr
