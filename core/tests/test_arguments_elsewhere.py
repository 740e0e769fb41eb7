"""Names of other libraries are errors that say what the thing is called here."""

from __future__ import annotations

import re

import pytest
from torchbus import events, session
from torchbus.bus import discovery
from torchbus.bus.base import hookimpl
from torchbus.bus.registry import Bus
from torchbus.errors import PluginNotInstalled, UsageError
from torchbus.session import Session


@pytest.mark.parametrize(("name", "hint"), discovery.hints("option").items())
def test_an_option(name: str, hint: str) -> None:
    if name in discovery.installed("option"):  # a strategy's own, which nobody has asked for
        with pytest.raises(
            UsageError, match=rf"{name}: an option of .* or leave it out \({hint}\)"
        ):
            session(**{name: "bf16"})
        return
    if name in discovery.distributions("option"):
        with pytest.raises(PluginNotInstalled, match=rf"pip install .* \({hint}\)$"):
            session(**{name: 1})
        return
    with pytest.raises(UsageError) as error:
        session(**{name: 1})
    assert str(error.value) == f"unknown option {name!r}: {hint}"


@pytest.mark.parametrize(("name", "hint"), discovery.hints("verb").items())
def test_a_verb(name: str, hint: str) -> None:
    with session() as s:
        with pytest.raises(AttributeError) as error:
            getattr(s, name)
        assert str(error.value) == f"unknown s.{name}: {hint}"
        assert not hasattr(s, name)


@pytest.mark.parametrize(("name", "hint"), discovery.hints("object").items())
def test_an_object(name: str, hint: str) -> None:
    """Also one of a class that is derived from it."""
    thing = type("Derived", (type(name, (), {}),), {})()
    with pytest.raises(UsageError) as error:
        session(thing)
    assert str(error.value) == (
        f"session(Derived): a Derived is not a plugin, since it listens to no event: {hint}"
    )
    with pytest.raises(UsageError, match=r"^logger=<.*> is not a logger: ") as error:
        session(logger=thing)
    assert str(error.value).endswith(f": {hint}")


@pytest.mark.parametrize(("name", "hint"), discovery.hints("event").items())
def test_an_event(name: str, hint: str) -> None:
    listens = type("Callback", (), {name: hookimpl(lambda self, trainer, pl_module: None)})
    with pytest.raises(UsageError) as error, session(listens()):
        pass
    assert str(error.value) == (
        f"plugin Callback listens to {name!r}, which is not an event; {hint}"
    )


def test_the_list_of_events_has_no_name_twice() -> None:
    listens = type("Callback", (), {"xyzzy": hookimpl(lambda self: None)})
    with pytest.raises(UsageError, match="there are: ") as error, session(listens()):
        pass
    there = str(error.value).partition("there are: ")[2].split(", ")
    assert len(there) == len({*there})


@pytest.mark.parametrize("kind", ["strategy", "logger"])
def test_a_strategy_or_logger(kind: str) -> None:
    for name, hint in discovery.hints(kind).items():
        with pytest.raises(UsageError) as error:
            session(**{kind: name})
        assert str(error.value) == f"unknown {kind} {name!r}: {hint}"


def test_what_a_hint_names_is_there() -> None:
    """Every option and verb that a hint names exists."""
    options = {*discovery.distributions("option"), *vars(session()._context)["options"]}
    verbs = {*discovery.distributions("verb"), *dir(Session)}
    for kind in ("option", "verb", "strategy", "logger", "object"):
        for hint in discovery.hints(kind).values():
            words = hint.translate(str.maketrans("(,)`", "    ")).split()
            for word in words:
                if word.startswith("s.") and not word.startswith("s.world"):
                    assert word[2:].rstrip(":;.") in verbs, hint
                if "=" in word and "torch" not in word:
                    assert word.partition("=")[0] in options, hint
    known = {*Bus(events).events(), *discovery.installed("event")}
    for hint in discovery.hints("event").values():
        assert {*re.findall(r"\w+_\w+", hint)} <= {*known, "state_dict", "load_state_dict"}, hint
