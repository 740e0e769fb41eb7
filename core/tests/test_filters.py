"""``every=``, ``once=`` and ``main_only=``, for plugins and for functions of the script; steps."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, Optimizer
from torchbus import hookimpl, session
from torchbus.errors import PluginError, UsageError
from torchbus.objects import optimizers
from torchbus.runtime.context import Context


@pytest.fixture(autouse=True)
def optimizers_of_other_tests_have_trained_nothing() -> None:
    """Those that are still alive: a session counts late only if no optimizer may have stepped."""
    for one in optimizers():
        one.state.clear()
        one.zero_grad()


def optimizer(kind: type[Optimizer] = SGD) -> Optimizer:
    parameter = torch.zeros(1, requires_grad=True)
    return kind([parameter], lr=0.1)  # type: ignore[call-arg]


def heard_by(filters: dict[str, Any], event: str, times: int) -> list[int]:
    """The times, counted from 1, at which a listener with these filters hears an event."""
    heard, now = [], 0

    class Plugin:
        @hookimpl(**filters, specname=event)
        def hears(self) -> None:
            heard.append(now)

    made = optimizer()
    with session(Plugin(), strategy=None):
        for now in range(1, times + 1):  # noqa: B007
            if event == "after_optimizer_step":
                made.step()
            else:
                torch.nn.Linear(1, 1).train()
    return heard


@pytest.mark.parametrize("event", ["after_optimizer_step", "mode_changed"])
@pytest.mark.parametrize(
    ("filters", "heard"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7]),
        ({"every": 1}, [1, 2, 3, 4, 5, 6, 7]),
        ({"every": 3}, [3, 6]),
        ({"every": 8}, []),
        ({"once": True}, [1]),
        ({"every": 3, "once": True}, [3]),
        ({"main_only": True}, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_a_listener_hears_what_its_filter_lets_through(
    filters: dict[str, Any], heard: list[int], event: str
) -> None:
    assert heard_by(filters, event, 7) == heard


def test_listeners_of_one_plugin_count_by_themselves() -> None:
    class Plugin:
        def __init__(self) -> None:
            self.heard: list[str] = []

        @hookimpl(every=2)
        def before_optimizer_step(self, optimizer: Optimizer) -> None:
            self.heard.append(type(optimizer).__name__)

        @hookimpl(every=3)
        def after_optimizer_step(self) -> None:
            self.heard.append("after")

    one, two, made = Plugin(), Plugin(), optimizer()
    with session(one, strategy=None) as s:
        made.step()
        s.add_plugin(two, "second")
        for _ in range(3):
            made.step()
    assert one.heard == ["SGD", "after", "SGD"]
    assert two.heard == ["SGD", "after"]


def test_a_script_listens_by_functions_of_any_kind() -> None:
    heard: list[object] = []

    class Own:
        def hear(self, optimizer: Optimizer) -> None:
            heard.append(type(optimizer).__name__)

    with session(strategy=None) as s:

        @s.on("after_optimizer_step", every=2)
        def named() -> None:
            heard.append("named")

        show = s.on("after_optimizer_step", functools.partial(heard.append, "partial"), once=True)
        s.on("before_optimizer_step", Own().hear)
        s.on("after_backward", lambda call: heard.append(call.loss.item()), main_only=True)
        made = optimizer()
        (made.param_groups[0]["params"][0] + 3).sum().backward()
        for _ in range(2):
            made.step()
    assert heard == [3.0, "SGD", "partial", "SGD", "named"]
    assert named.__name__ == "named" and isinstance(show, functools.partial)
    made.step()
    assert len(heard) == 5  # not after the block


def test_functions_of_the_script_come_after_all_plugins_in_their_order() -> None:
    heard: list[str] = []

    class Last:
        @hookimpl(trylast=True)
        def after_optimizer_step(self) -> None:
            heard.append("plugin")

    with session(Last(), strategy=None) as s:
        s.on("after_optimizer_step", lambda: heard.append("first"))
        s.on("after_optimizer_step", lambda: heard.append(f"second at {s.global_step}"))
        order = s._context.bus.order("after_optimizer_step")
        optimizer().step()
    assert heard == ["plugin", "first", "second at 1"]
    assert order == ["steps", "Last", "s.on after_optimizer_step 1", "s.on after_optimizer_step 2"]


def test_the_order_is_that_of_the_calls() -> None:
    heard: list[str] = []

    def plugin(name: str, **marks: Any) -> object:
        class Plugin:
            @hookimpl(**marks)
            def before_optimizer_step(self) -> None:
                heard.append(name)

        return Plugin()

    with session(strategy=None) as s:
        for name, marks in {
            "last": {"trylast": True},
            "a": {},
            "first": {"tryfirst": True},
            "b": {"every": 1},
            "earlier": {"tryfirst": True},
            "later": {"trylast": True, "main_only": True},
        }.items():
            s.add_plugin(plugin(name, **marks), name)
        order = s._context.bus.order("before_optimizer_step")
        optimizer().step()
    assert heard == order == ["earlier", "first", "b", "a", "last", "later"]


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"every": 0}, "every=0: it must be a whole number from 1"),
        ({"every": True}, "every=True"),
        ({"every": 2.0}, r"every=2\.0"),
        ({"once": 1}, "once=1: it must be True or False"),
        ({"main_only": "yes"}, "main_only='yes'"),
    ],
)
def test_a_wrong_filter_is_refused_where_it_is_written(
    filters: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        hookimpl(**filters)
    with session(strategy=None) as s, pytest.raises(UsageError, match=message):
        s.on("after_optimizer_step", print, **filters)


def test_a_wrong_event_or_function_is_refused_and_leaves_nothing() -> None:
    with session(strategy=None) as s:
        assert s.global_step == 0
        before, seams = s._context.bus.plugins(), s._context.seams.places()
        with pytest.raises(UsageError, match="did you mean after_optimizer_step"):
            s.on("after_optimiser_step", print)
        with pytest.raises(UsageError, match="'losses'"):
            s.on("after_backward", lambda losses: None)
        with pytest.raises(UsageError, match=r"s.on\('after_backward', int\): pass a function"):
            s.on("after_backward", 3)  # type: ignore[arg-type]
        assert s._context.bus.plugins() == before
        assert s._context.seams.places() == seams


def test_a_wrapper_has_no_filter() -> None:
    class Wrapper:
        @hookimpl(wrapper=True, every=2)
        def mode_changed(self) -> Iterator[None]:
            yield

    with pytest.raises(
        PluginError, match="mode_changed has a filter, so use @hookimpl without wrapper"
    ):
        session(Wrapper(), strategy=None)


def test_counts_are_a_state_by_names() -> None:
    def run(steps: int, state: dict[str, int] | None = None) -> tuple[list[int], dict[str, int]]:
        heard: list[int] = []

        class Every:
            @hookimpl(every=3)
            def after_optimizer_step(self) -> None:
                heard.append(now)

        made = optimizer()
        with session(Every(), strategy=None) as s:
            s.on("after_optimizer_step", lambda: heard.append(-now), every=2)
            plugins = dict(s._context.bus.plugins())
            counts: Any = plugins["filters"]
            if state is not None:
                counts.load_state_dict(state)
            for now in range(1, steps + 1):  # noqa: B007
                made.step()
            return heard, counts.state_dict()

    whole, _ = run(7)
    first, state = run(2)
    then, _ = run(5, state)
    assert whole == [-2, 3, -4, 6, -6]
    assert state == {
        "Every.after_optimizer_step": 2,
        "s.on after_optimizer_step 1.after_optimizer_step": 2,
    }
    assert [*first, *(one + 2 if one > 0 else one - 2 for one in then)] == whole


class Numbers:
    """What each event sees of the number of steps."""

    def __init__(self, events: list[str]) -> None:
        self.seen: dict[str, list[int]] = {event: [] for event in events}
        for event in events:
            setattr(self, event, hookimpl(self._listener(event)))

    def _listener(self, event: str) -> Any:
        def hear() -> None:
            self.seen[event].append(self.steps.count)

        return hear

    @hookimpl
    def session_start(self, session: Context) -> None:
        self.steps = session.steps.follow()


def test_the_number_of_the_step_at_each_event() -> None:
    """As docs/events.md says: that of finished steps."""
    in_progress = [
        "batch_wanted",
        "batch_ready",
        "before_zero_grad",
        "gradients_cleared",
        "before_backward",
        "after_backward",
        "gradient_norm",
        "step_called",
        "before_optimizer_step",
        "gradients_ready",
    ]
    plugin = Numbers([*in_progress, "after_optimizer_step"])
    with session(plugin, strategy=None):
        model = torch.nn.Linear(1, 1)
        made = SGD(model.parameters(), lr=0.1)
        for x in torch.utils.data.DataLoader(torch.ones(3, 1), batch_size=1):
            made.zero_grad()
            model(x).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            made.step()
    for event in in_progress:
        assert plugin.seen[event][:3] == [0, 1, 2], event
    assert plugin.seen["batch_wanted"] == [0, 1, 2, 3]  # and the end
    assert plugin.seen["after_optimizer_step"] == [1, 2, 3]


@pytest.mark.parametrize("early", [False, True])
def test_the_global_step_is_counted_if_the_script_reads_it(early: bool) -> None:
    made = optimizer()
    s = session(strategy=None)
    steps = [s.global_step] if early else [0]
    with s:
        for _ in range(3):
            made.step()
            steps.append(s.global_step)
    assert steps == [0, 1, 2, 3]


def test_the_count_of_an_imported_module_and_of_decorated_functions(tmp_path: Path) -> None:
    """The module that opens the block names it, in another function."""
    (tmp_path / "library.py").write_text(
        "import torch, torchbus\n"
        "def loop():\n"
        "    made = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)\n"
        "    for _ in range(2):\n"
        "        made.param_groups[0]['params'][0].sum().backward()\n"
        "        made.step()\n"
        "    print(torchbus.current().global_step)\n"
        "def main():\n"
        "    with torchbus.session(strategy=None):\n"
        "        loop()\n"
        "decorated = torchbus.session(strategy=None)(loop)\n"
    )
    command = [sys.executable, "-c", "import library; library.main(); library.decorated()"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["2", "2"]
