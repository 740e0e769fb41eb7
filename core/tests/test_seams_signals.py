"""A signal that comes while torch is changed leaves no change half made."""

from __future__ import annotations

import dataclasses
import signal

import pytest
import torch
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.patches import active as _seams
from torchbus.patches import modules
from torchbus.patches.patching import undisturbed

from torchbus_testing.state import assert_torch_unchanged, torch_state


class Hears:
    @hookimpl
    def module_called(self) -> None:
        pass


@pytest.fixture(autouse=True)
def ctrl_c_interrupts():
    """Also in a job that a shell has started with ``&``, which ignores it."""
    put = signal.signal  # a test may replace it
    before = put(signal.SIGINT, signal.default_int_handler)
    yield
    put(signal.SIGINT, before)


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C arrives just before the seam's change is noted, or just before it is undone."""
    whole = modules.every_forward
    came = []

    def installed(ears):
        undo = whole.install(ears)
        if "installs" in came:
            signal.raise_signal(signal.SIGINT)

        def undone():
            if "removes" in came:
                came.clear()
                signal.raise_signal(signal.SIGINT)
            undo()

        return undone

    changed = dataclasses.replace(whole, install=installed)
    patches = tuple(changed if patch is whole else patch for patch in _seams.ALL)
    monkeypatch.setattr(_seams, "ALL", patches)
    return came


@pytest.mark.parametrize("when", ["installs", "removes"])
def test_ctrl_c_waits_for_the_change(interrupted, when):
    before, plugin = torch_state(), Hears()
    with pytest.raises(KeyboardInterrupt), session(devices=1) as s:
        if when == "installs":
            interrupted.append(when)
        s._context.bus.register(plugin)
        interrupted.append(when)
        s._context.bus.unregister(plugin)
        raise AssertionError("the loop goes on")
    assert_torch_unchanged(before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signals_are_handled_in_their_order_and_nothing_is_swallowed():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with undisturbed(), undisturbed():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            assert heard == []
        assert heard == [signal.SIGTERM] * 2
        with pytest.raises(KeyboardInterrupt), undisturbed():
            signal.raise_signal(signal.SIGINT)
            torch.ones(1)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_one_that_raises_while_handlers_are_put_back_leaves_none_deaf(monkeypatch):
    heard, put_back = [], signal.signal
    before = put_back(signal.SIGTERM, lambda number, frame: heard.append(number))

    def interrupt(number, handler):
        put_back(number, handler)
        if handler is signal.default_int_handler:
            signal.raise_signal(signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt), undisturbed():
            monkeypatch.setattr(signal, "signal", interrupt)
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        put_back(signal.SIGTERM, before)
