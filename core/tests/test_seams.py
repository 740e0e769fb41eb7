"""A seam is installed only for an event that somebody listens to, says so, and is gone
afterwards.
"""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import events, session
from torchbus.bus.base import hookimpl
from torchbus.bus.registry import Bus
from torchbus.patches import active as seams
from torchbus.patches.active import Seams
from torchbus.patches.patching import replace

from torchbus_testing.recorder import ALL_EVENTS
from torchbus_testing.state import assert_torch_unchanged, torch_state

PLACES = {event: seam.place for seam in seams.ALL for event in seam.events}
PLACES["optimizer_ready"] = PLACES["parameters_added"]  # the rest is there while one waits
ALWAYS = (
    "launch",
    "session_start",
    "describe",
    "explain_lines",
    "session_end",
    "init_process_group",  # these three by strategies
    "parameters_may_differ",
    "own_tensors",
    "whole_shape",
)


def listener(event: str) -> SimpleNamespace:
    return SimpleNamespace(**{event: hookimpl(lambda: None)})


def test_a_bare_session_installs_nothing():
    before = torch_state()
    del before["active session"]
    with session(strategy=None) as s:
        assert s._context.seams.places() == []
        assert "patches     none: torch is unchanged" in s.explain()
        assert_torch_unchanged(before)


@pytest.mark.parametrize("event", sorted(ALL_EVENTS))
def test_an_event_installs_its_own_seam_alone(event):
    before = torch_state()
    with session(listener(event), strategy=None) as s:
        assert s._context.seams.places() == ([PLACES[event]] if event in PLACES else [])
        if event in PLACES:
            assert PLACES[event] in s.explain()
            with pytest.raises(AssertionError):
                assert_torch_unchanged({**before, "active session": s})
    assert s._context.seams.places() == []
    assert_torch_unchanged(before)


def test_every_event_has_a_seam_or_comes_from_the_session():
    assert set(PLACES) | set(ALWAYS) == ALL_EVENTS


@pytest.mark.parametrize("leave", [None, ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_all_seams_go_however_the_block_is_left(leave):
    before = torch_state()
    plugins = [listener(event) for event in sorted(PLACES)]
    try:
        with session(strategy=None) as s:
            for number, plugin in enumerate(plugins):
                s.add_plugin(plugin, f"plugin{number}")
            assert len(s._context.seams.places()) == len(seams.ALL)
            if leave is not None:
                raise leave
    except BaseException as error:
        assert type(error) is leave
    assert_torch_unchanged(before)


def test_what_a_plugin_replaces_is_listed_and_put_back():
    def make(original):
        return lambda number: original(number) + 1

    before = torch_state()
    with session(strategy=None) as s:
        s._context.replace(torch.nn.functional, "relu", make)
        assert torch.nn.functional.relu(torch.tensor(2)) == 3
        assert (
            s._context.seams.places() == ["torch.nn.functional.relu"]
            and "patches     torch.nn.functional.relu" in s.explain()
        )
    assert s._context.seams.places() == []
    assert_torch_unchanged(before)


def test_a_retired_seam_stays_away():
    bus = Bus(events)
    installed = Seams(bus)
    bus.register(listener("model_found"), "models")
    bus.register(listener("save_file"), "files")
    installed.refresh()
    assert installed.places() == [PLACES["model_found"], PLACES["save_file"]]
    installed.retire("model_found")
    assert installed.places() == [PLACES["save_file"]]
    installed.refresh()
    assert installed.places() == [PLACES["save_file"]]
    installed.close()
    installed.refresh()
    assert installed.places() == [PLACES["model_found"], PLACES["save_file"]]
    installed.close()


def test_an_attribute_that_somebody_else_replaced_meanwhile_is_left_alone():
    class Owner:
        def method(self):
            return 1

    original = Owner.method
    undo = replace(Owner, "method", lambda method: lambda self: method(self) + 1)
    assert Owner().method() == 2 and Owner.method.__name__ == "method"
    undo()
    assert Owner.method is original
    undo = replace(Owner, "method", lambda method: lambda self: method(self) + 1)
    Owner.method = theirs = lambda self: 5
    with pytest.warns(
        UserWarning,
        match="method was replaced inside the session and not restored: torchbus does not change it",
    ):
        undo()
    assert Owner.method is theirs


def test_a_model_is_found_once_and_only_outermost():
    found = []

    class Listener:
        @hookimpl
        def model_found(self, model):
            found.append(model)

    with session(Listener(), strategy=None):
        models = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()) for _ in range(2)]
        for _ in range(2):
            for model in models:
                model(torch.ones(1, 2))
    assert found == models


def test_what_the_seams_wrap_works_as_before(tmp_path):
    """Every listener is there and does nothing."""

    class OwnLoader(DataLoader):
        def __init__(self, letters: str) -> None:
            super().__init__(list(letters), batch_size=2, collate_fn="".join)
            self.name = "own"

    class Engine:
        @hookimpl
        def run_backward(self, call, engine):
            engine(
                call.tensors,
                call.grad_tensors,
                call.retain_graph,
                call.create_graph,
                inputs=call.inputs,
            )

    plugins = [listener(event) for event in sorted(set(PLACES) - {"run_backward"})]
    with session(Engine(), strategy=None) as s:
        for number, plugin in enumerate(plugins):
            s.add_plugin(plugin, f"plugin{number}")
        loader = OwnLoader("abcde")
        assert list(loader) == ["ab", "cd", "e"] and len(loader) == 3 and loader.name == "own"
        passing = iter(loader)
        assert next(passing) == "ab" and len(passing) == 3 and iter(passing) is passing

        x = torch.tensor([3.0], requires_grad=True)
        y = torch.tensor([2.0], requires_grad=True)
        (x * y).backward(retain_graph=True)
        assert (x.grad.item(), y.grad.item()) == (2.0, 3.0)
        torch.autograd.backward([x * 1, y * 1], [torch.tensor([10.0]), torch.tensor([20.0])])
        assert (x.grad.item(), y.grad.item()) == (12.0, 23.0)
        (x * y).backward(inputs=[x])
        assert (x.grad.item(), y.grad.item()) == (14.0, 23.0)
        torch.autograd.backward(iter([x * 2]), iter([torch.tensor([3.0])]))
        assert x.grad.item() == 20.0

        optimizer = torch.optim.LBFGS([x])
        assert optimizer.step(lambda: (x * 0).sum()).item() == 0.0
        torch.save({"x": 1}, tmp_path / "x.pt")
        assert torch.load(tmp_path / "x.pt", weights_only=True) == {"x": 1}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5])
def test_batches_that_are_skipped_are_those_that_come_first(count, shuffle, drop_last):
    loader = DataLoader(
        range(10),
        3,
        shuffle=shuffle,
        drop_last=drop_last,
        generator=torch.Generator().manual_seed(1),
    )
    expected = [batch.tolist() for batch in loader]
    loader.generator.manual_seed(1)
    with session(listener("batches_skipped"), strategy=None):
        passing = iter(loader)
        if count > len(expected):
            with pytest.raises(StopIteration):
                passing.skip(count)
        else:
            passing.skip(count)
            assert [batch.tolist() for batch in passing] == expected[count:]


def test_any_number_of_batches_is_skipped_at_once():
    with session(listener("batches_skipped"), strategy=None):
        passing = iter(DataLoader(range(10**12), 4))
        passing.skip(10**11)
        assert next(passing).tolist() == [4 * 10**11 + place for place in range(4)]


def test_a_nested_backward_is_not_heard():
    from torch.utils.checkpoint import checkpoint

    heard = []

    class Listener:
        @hookimpl
        def before_backward(self):
            heard.append("before")

    layer = torch.nn.Linear(2, 2)
    with session(Listener(), strategy=None), warnings.catch_warnings():
        checkpoint(layer, torch.ones(1, 2, requires_grad=True), use_reentrant=True).sum().backward()
    assert heard == ["before"] and layer.weight.grad is not None
