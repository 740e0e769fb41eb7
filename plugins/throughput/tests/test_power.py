"""Joules per sample, from the power that a monitor measures."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from torchbus import session
from torchbus.bus.base import hookimpl, hookspec

LOOPS = runpy.run_path(str(Path(__file__).parent / "scripts" / "loops.py"))
loader, make, loss_of = (LOOPS[name] for name in ("loader", "make", "loss_of"))


class Events:
    """What torchbus-gpu declares."""

    @hookspec
    def system_metrics(metrics, time_s): ...


class Monitor:
    """Measures, in each batch, what it is told."""

    owns = ("monitor",)
    declares_events = Events

    def __init__(self, watts):
        self._watts = iter(watts)

    @hookimpl
    def session_start(self, session):
        self._session = session

    @hookimpl
    def batch_ready(self):
        found = next(self._watts)
        metrics = {"cpu_pct": 5.0} | ({} if found is None else {"gpu_power_w": found})
        self._session.bus.hook.system_metrics(metrics=metrics, time_s=1.0)


def watts_of_windows(*watts, every=2):
    """The mean power by which each window's joules were found."""
    model, optimizer = make()
    found = []
    with session(Monitor(watts), strategy=None, throughput_every=every) as s:
        for number, (x, y) in enumerate(loader(), 1):
            loss_of(model, x, y).backward()
            optimizer.step()
            if number % every == 0:
                last = s.throughput()
                joules = last.joules_per_sample
                found.append(None if joules is None else joules * last.samples / last.seconds)
    return found


def test_the_mean_of_what_was_measured():
    assert watts_of_windows(300, 100, 50, 70, 80, 80) == pytest.approx([200, 60, 80])


def test_a_window_without_a_measurement_has_the_latest():
    assert watts_of_windows(300, 100, None, None, 80, 80) == pytest.approx([200, 100, 80])


def test_without_power_there_are_no_joules():
    assert watts_of_windows(*[None] * 6) == [None] * 3
