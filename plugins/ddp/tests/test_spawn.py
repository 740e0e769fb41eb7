"""ddp_spawn, without what the field's has: a stale model, a return value that is lost, pickling errors that name nothing, one fit."""

from __future__ import annotations

import pytest
from torchbus import session
from torchbus.errors import UsageError
from torchbus.testing import Result, run_script

HEAD = """
import functools, threading, torch
from torch import nn
from torchbus import session
torch.set_default_dtype(torch.float64)

def data():
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(1))

def steps(model, optimizer, x):
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

@session(strategy="ddp_spawn", devices=2, accelerator="cpu")
def train(model, optimizer, x, *, note="", rank=None):
    from torchbus.session import current
    s = current()
    steps(model, optimizer, x[s.rank * 4 : s.rank * 4 + 4])
    print("from rank", s.rank)
    return {"ranks": s.world_size, "note": note, "agree": torch.equal(*s.all_gather(model.weight.detach()))}

class Model(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)
        self.transform = nn.Module()

def make():
    torch.manual_seed(0)
    model = Model()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
TRAIN = HEAD + """
if __name__ == "__main__":
    alone = make()
    model, optimizer = make()
    weight = model.weight
    for time in range(2):
        steps(*alone, data())
        print(train(model, optimizer, data(), note="kept"))
        print(model.weight is weight, torch.allclose(weight, alone[0].weight, rtol=0, atol=1e-12))
"""
TOLD = "from rank 0\n{'ranks': 2, 'note': 'kept', 'agree': True}\nTrue True\n"


@pytest.fixture(scope="module")
def trained() -> Result:
    result = run_script(TRAIN)
    assert result.ok()
    return result


def test_the_main_model_that_stayed_stale_is_trained(trained):
    assert "True True\n" in trained.stdout


def test_the_return_value_that_was_lost_comes_back(trained):
    assert "{'ranks': 2, 'note': 'kept', 'agree': True}\n" in trained.stdout


def test_one_fit_only_is_as_many_as_one_likes(trained):
    assert trained.stdout == TOLD + TOLD and not trained.stderr


CULPRITS = HEAD + """
def refuse(**extra):
    model, optimizer = make()
    for name, value in extra.items():
        setattr(model.transform, name, value)
    try:
        train(model, optimizer, data())
    except Exception as error:
        print(type(error).__name__, error)

def locals_of():
    class Inner:
        pass
    def helper():
        return None
    return Inner(), helper

if __name__ == "__main__":
    inner, helper = locals_of()
    refuse(fn=lambda x: x)
    refuse(table={"a": [1, helper]})
    refuse(thing=inner)
    refuse(part=functools.partial(max, key=lambda x: x))
    refuse(lock=threading.Lock())
    session(strategy="ddp_spawn", devices=2, accelerator="cpu")
    for function in (lambda: None, helper):
        try:
            session(strategy="ddp_spawn", devices=2, accelerator="cpu")(function)()
        except Exception as error:
            print(type(error).__name__, error)
    print(session(strategy="ddp_spawn", devices=2, accelerator="cpu")(data)().shape)
"""


def test_what_can_not_be_pickled_is_named():
    result = run_script(CULPRITS)
    assert result.ok()
    ways = [line.replace("UsageError launch='spawn': ", "").partition(", so it can't be sent")[0] for line in result.stdout.splitlines()[:5]]
    assert ways[0].startswith("model.transform.fn is a lambda defined at script.py:")
    assert ways[1].startswith("model.transform.table['a'][1] is the function helper defined inside locals_of() at script.py:")
    assert ways[2] == "model.transform.thing is a Inner, a class defined inside locals_of()"
    assert ways[3].startswith("model.transform.part.keywords['key'] is a lambda defined at script.py:")
    assert ways[4] == "model.transform.lock is a _thread.lock (cannot pickle '_thread.lock' object)"


def test_functions_that_have_no_name_elsewhere_are_refused_and_others_need_no_decorator_line():
    result = run_script(CULPRITS)
    *_, a_lambda, local, shape = result.stdout.splitlines()
    assert "launch='spawn': a lambda defined at script.py:" in a_lambda and "can't be found by its name in another process" in a_lambda
    assert "the function helper defined inside locals_of() at script.py:" in local and "use launch='fork', which pickles nothing" in local
    assert shape == "torch.Size([8, 3])"


@pytest.mark.slow
def test_a_failing_rank_ends_all():
    result = run_script(TRAIN.replace('print("from rank", s.rank)', "1 / (1 - s.rank)"))
    assert result.ok(1) and "[rank 1] ZeroDivisionError: division by zero" in result.stderr


def test_a_block_is_refused():
    with pytest.raises(UsageError, match="launch='spawn' runs a function in new processes, and there is none here: decorate one"):
        session(strategy="ddp_spawn", devices=2, accelerator="cpu").start()


@pytest.mark.slow
def test_a_function_of_a_notebook_or_prompt_is_refused():
    source = HEAD + "del __file__; __spec__ = None\nmodel, optimizer = make()\ntrain(model, optimizer, data())"
    result = run_script(source)
    assert result.ok(1) and "the function train defined at script.py:" in result.stderr
