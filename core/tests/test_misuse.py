"""What is no plugin, and functions that no session can be around, are refused with the form that
was meant.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.errors import UsageError

from torchbus_testing.forking import fork_script
from torchbus_testing.state import assert_torch_unchanged, torch_state


class Plugin:
    @hookimpl
    def after_backward(self):
        pass


class Nothing:
    pass


def train(configuration):
    raise AssertionError("must not run")


NO_PLUGINS = [
    (2, "session(2): an int is not a plugin, since it listens to no event: write devices=2"),
    (
        None,
        "session(None): a NoneType is not a plugin, since it listens to no event: pass objects with `@hookimpl` methods, names "
        "of plugins, or options by keyword",
    ),
    (
        True,
        "session(True): a bool is not a plugin, since it listens to no event: pass objects with `@hookimpl` methods",
    ),
    (
        Nothing(),
        "session(Nothing): a Nothing is not a plugin, since it listens to no event: pass objects with `@hookimpl` methods",
    ),
    (
        [Plugin()],
        "session(list): a list is not a plugin, since it listens to no event: pass plugins one by one",
    ),
    (
        torch.nn.Linear(1, 1),
        "session(Linear): a Linear is not a plugin, since it listens to no event: the session finds models, optimizers and "
        "loaders itself, so leave it out",
    ),
    (
        torch.optim.SGD([torch.zeros(1)], lr=0.1),
        "session(SGD): a SGD is not a plugin, since it listens to no event: the session finds models",
    ),
    (
        DataLoader([1]),
        "session(DataLoader): a DataLoader is not a plugin, since it listens to no event: the session finds models",
    ),
    (
        print,
        "session(print): print is not a plugin: write `@session()`, with parentheses, above a function that trains",
    ),
    (
        train,
        "session(train): train is not a plugin: write `@session()`, with parentheses, above a function that trains",
    ),
    (
        Nothing,
        "session(Nothing): Nothing is not a plugin: write `@session()`, with parentheses, above a function that trains",
    ),
    (Plugin, "plugin Plugin is a class: pass an object, Plugin()"),
]


@pytest.mark.parametrize(
    ("thing", "words"), NO_PLUGINS, ids=lambda value: value[:24] if isinstance(value, str) else ""
)
def test_what_is_no_plugin(thing, words):
    with pytest.raises(UsageError) as error:
        session(thing)
    assert str(error.value).startswith(words)
    with pytest.raises(UsageError):
        session(Plugin(), thing, strategy=None)


def test_what_is_a_plugin_without_listening_itself():
    class Companions:
        companions = ("log",)

    class Verb:
        verbs = ("answer",)
        answer = 42

    class Static:
        @staticmethod
        @hookimpl
        def after_backward(call):
            pass

    late = Nothing()
    late.after_backward = hookimpl(lambda call: None)
    for plugin in (Companions(), Verb(), Static(), late):
        with session(plugin, strategy=None):
            pass


def test_the_decorator_without_its_parentheses():
    """Above a function of any kind: nothing is defined, nothing runs."""
    for function in (train, lambda: 1, functools.partial(train, 1).func):
        with pytest.raises(
            UsageError, match="write `@session\\(\\)`, with parentheses, above a function"
        ):
            session(function)
    with pytest.raises(
        UsageError, match="write `@session\\(\\)`, with parentheses, above a function"
    ):

        @session
        def steps():
            yield 1


def test_the_block_without_its_parentheses():
    before = torch_state()
    with (
        pytest.raises(
            UsageError,
            match=r"^`with session:` lacks its parentheses: write `with session\(\) as s:`$",
        ),
        session,
    ):
        raise AssertionError("the block must not run")
    assert_torch_unchanged(before)


def generator():
    yield 1


async def coroutine():
    pass


async def stream():
    yield 1


@functools.wraps(generator)
def wrapped():
    return generator()


@contextlib.contextmanager
def training():
    yield


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (generator, "generator, a generator function"),
        (wrapped, "generator, a generator function"),
        (training, "training, a generator function"),
        (stream, "stream, a generator function"),
        (coroutine, "coroutine, an async function"),
    ],
)
def test_a_body_that_runs_later(function, kind):
    with pytest.raises(UsageError) as error:
        session(strategy=None)(function)
    assert (
        str(error.value)
        == f"@session() on {kind}: its body would run after the session has ended. Write `with session(...):` inside it"
    )


def test_the_form_that_is_meant_works_for_these():
    heard = []

    class Hears:
        @hookimpl
        def after_backward(self):
            heard.append(1)

    def step():
        torch.ones(1, requires_grad=True).sum().backward()

    def steps():
        with session(Hears(), strategy=None):
            for number in range(2):
                step()
                yield number

    async def loop():
        with session(Hears(), strategy=None):
            await asyncio.sleep(0)
            step()

    class Trainer:
        @session(Hears(), strategy=None)
        def fit(self, steps):
            for _ in range(steps):
                step()
            return steps

    assert list(steps()) == [0, 1]
    asyncio.run(loop())
    assert Trainer().fit(3) == 3
    assert len(heard) == 6


@pytest.mark.parametrize("thing", [Nothing, 3, None, "train"])
def test_what_is_no_function(thing):
    with pytest.raises(
        UsageError, match="which is not a function: write it above the function that trains"
    ):
        session(strategy=None)(thing)


UNUSED = """
from torchbus import session
def main():
    made = session(seed=1)
    if {}:
        made.explain()
    print("trained")
main()
"""


def test_a_session_that_is_never_entered_names_its_line():
    result = fork_script(UNUSED.format(False))
    assert result.status == 0 and "never entered, and did nothing: write `with" in result.stderr
    assert ":4: UserWarning: this session" in result.stderr


@pytest.mark.parametrize("use", ["explain", "decorator", "with", "start"])
def test_a_session_with_another_use_brings_no_warning(use):
    lines = {"decorator": "session()(print)", "with": "with session():\n    pass"}
    lines |= {"start": "session().start().close()"}
    source = f"from torchbus import session\n{lines.get(use, '')}"
    result = fork_script(UNUSED.format(True) if use == "explain" else source)
    assert result.status == 0 and not result.stderr
