"""Sessions in sessions, in workers, and used again."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchbus import hookimpl, session
from torchbus.errors import UsageError

from torchbus_testing.state import assert_torch_unchanged, torch_state


def test_nested_sessions():
    before = torch_state()
    with session(strategy=None), pytest.raises(UsageError) as error, session(strategy=None):
        pass
    assert (
        str(error.value)
        == "a session inside a session: one is active already; end it first, or pass both sets of plugins to one"
    )
    assert_torch_unchanged(before)
    with session(strategy=None):
        pass


def test_a_session_is_for_one_block():
    with session(strategy=None) as s:
        with pytest.raises(UsageError, match="^a session inside a session: "):
            s.start()
        assert s.rank == 0
    with pytest.raises(UsageError) as error, s:
        raise AssertionError("the block must not run")
    assert (
        str(error.value)
        == "this session was used already: make a new one, session(...), for each block"
    )


class OpensSession(Dataset):
    """A data set as it is found in scripts without ``if __name__ == '__main__'``."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        try:
            with session(strategy=None):
                return "entered"
        except UsageError as error:
            return str(error)


@pytest.mark.parametrize("inside", [False, True])
def test_a_session_in_a_loader_worker(inside):
    loader = DataLoader(OpensSession(), num_workers=1)
    if inside:
        with session(strategy=None):
            words = list(loader)
    else:
        words = list(loader)
    assert words == [
        [
            "a session in a DataLoader worker: put it (and the loop) under `if __name__ == '__main__':`"
        ]
    ]


def test_adopt_takes_what_a_loop_is_made_of():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader([1])
    with session(strategy=None, capture=False) as s:
        assert s.adopt(model, optimizer, loader) == (model, optimizer, loader)
        assert s.adopt(model) is model
        assert (
            s._context.captures(model)
            and s._context.captures(loader)
            and not s._context.captures(torch.nn.Linear(1, 1))
        )
        with pytest.raises(
            UsageError, match=r"^adopt\(str\): pass modules, optimizers, DataLoaders or tensors$"
        ):
            s.adopt("model")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda s: s.all_gather(3),
            "s.all_gather(3): an int is not a tensor; s.all_gather_object takes any object",
        ),
        (
            lambda s: s.all_gather([torch.ones(1)]),
            "s.all_gather([tensor([1.])]): a list is not a tensor; s.all_gather_object takes any object",
        ),
        (
            lambda s: s.reduce("x"),
            "s.reduce('x'): a str is neither a tensor nor a number. s.all_gather_object takes any object",
        ),
        (
            lambda s: s.reduce(None),
            "s.reduce(None): a NoneType is neither a tensor nor a number. s.all_gather_object takes any object",
        ),
        (
            lambda s: s.reduce({"loss": 1.0} | dict.fromkeys(range(99))),
            "s.reduce(dict): a dict is neither a tensor nor a number. s.all_gather_object takes any object",
        ),
        (lambda s: s.log_dict([1]), "s.log_dict(list): pass a dict from names to values"),
        (lambda s: s.log_dict("loss"), "s.log_dict(str): pass a dict from names to values"),
    ],
)
def test_values_that_verbs_can_not_take(call, words):
    with session(strategy=None) as s, pytest.raises(UsageError) as error:
        call(s)
    assert str(error.value) == words


def test_operations_that_do_not_exist():
    with session(strategy=None) as s:
        assert s.reduce(3.0).item() == 3.0
        with pytest.raises(
            UsageError, match="^op='median' is unknown: use one of mean, sum, max, min$"
        ):
            s.reduce(3.0, "median")


class Listens:
    def __init__(self):
        self.found = []
        self.ends = 0

    @hookimpl
    def parameters_added(self, optimizer, parameters):
        self.found.append((optimizer, len(parameters)))

    @hookimpl
    def session_end(self):
        self.ends += 1


def test_what_is_adopted_before_the_block_is_announced_in_it():
    listens, leaf = Listens(), torch.zeros(2, requires_grad=True)
    s = session(listens, strategy=None, capture=False)
    with pytest.raises(UsageError, match=r"^adopt\(str\)"):
        s.adopt("x")
    s.adopt(leaf)
    assert listens.found == [] and not s._context.captures("x")
    with s:
        assert listens.found == [(None, 1)]
    with pytest.raises(UsageError, match=r"^s.adopt was called outside its session"):
        s.adopt(leaf)


def test_a_session_ends_once():
    listens = Listens()
    session(listens, strategy=None).close()
    assert listens.ends == 0
    with session(listens, strategy=None) as s:
        s.close()
        s.close()
        assert listens.ends == 1
    assert listens.ends == 1


def test_a_stack_enters_a_session_for_its_caller():
    """The session finds the optimizer that the caller has made before."""
    listens, leaf = Listens(), torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([leaf], lr=0.1)
    with contextlib.ExitStack() as stack:
        stack.enter_context(session(listens, strategy=None))
        assert (optimizer, 1) in listens.found
