"""What is deprecated warns for one minor version, and says what to write instead."""

from __future__ import annotations

import ast
from pathlib import Path

import pluggy
import pytest
import torchbus
from torchbus.bus.base import hookspec
from torchbus.runtime.user_code import deprecated, warn

SOURCES = Path(torchbus.__file__).parent
WORDS = "s.old is deprecated since torchbus 0.2, and will be removed in 0.3: call s.new"


def test_it_warns_at_the_line_of_the_user() -> None:
    with pytest.warns(FutureWarning, match=WORDS) as heard:
        warn(deprecated("s.old", "0.2", "call s.new"))
    assert heard[0].filename == __file__


def test_listening_to_an_event_that_goes_warns() -> None:
    manager = pluggy.PluginManager("torchbus")
    marked = hookspec(warn_on_impl=deprecated("the event old", "0.9", "listen to new"))

    class Events:
        @marked
        def old(self) -> None: ...

    class Listener:
        @torchbus.hookimpl
        def old(self) -> None: ...

    manager.add_hookspecs(Events)
    with pytest.warns(FutureWarning, match="the event old is deprecated since torchbus 0.9"):
        manager.register(Listener())


def test_nothing_stays_longer_than_it_said() -> None:
    """A call in the core whose version has passed: remove what it speaks of."""
    now = tuple(map(int, torchbus.__version__.split(".")[:2]))
    late = [
        f"{path}:{call.lineno}"
        for path in SOURCES.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "deprecated"
        and isinstance(call.args[1], ast.Constant)
        and tuple(map(int, str(call.args[1].value).split("."))) < now
    ]
    assert late == []
