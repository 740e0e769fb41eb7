"""Recordings in one process: which steps, the content of the files, and unchanged state."""

from __future__ import annotations

import gzip
import json
import warnings

import pytest
import torch
from torch.autograd import _profiler_enabled
from torch.utils.data import DataLoader
from torchbus import session

SHORT = {"skip_first": 1, "warmup": 1, "active": 2}


def train(steps, each=lambda: None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x in DataLoader(torch.randn(steps * 4, 8), batch_size=4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        each()
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def traces(folder):
    found = {}
    for path in sorted(folder.glob("*/*.pt.trace.json.gz")):
        with gzip.open(path) as file:
            found[path.name.split(".")[1]] = json.load(file)["traceEvents"]
    return found


@pytest.fixture
def profiled(tmp_path):
    def run(steps, each=lambda s: None, **words):
        options = {"profile": SHORT | words, "profile_folder": tmp_path}
        with session(strategy=None, **options) as s:
            return train(steps, lambda: each(s)), s.profiled()

    return run


def test_the_recorded_steps_and_their_trace(profiled, tmp_path, capsys):
    values, found = profiled(8)
    assert torch.equal(values, train(8))
    assert (found.first_step, found.last_step) == (3, 4)
    assert sum(found.shares) == pytest.approx(1)
    calls = {one.name: one.calls for one in found.operators}
    assert calls["aten::addmm"] == 4 and len(calls) == 10
    assert [one.seconds for one in found.operators] == sorted(
        (one.seconds for one in found.operators), reverse=True
    )
    events = traces(tmp_path)["4"]
    names = [event["name"] for event in events]
    assert sum(name.startswith("ProfilerStep#") for name in names) == 2
    assert names.count("Optimizer.step#SGD.step") == 2
    printed = capsys.readouterr().out
    assert "profile: steps 3 to 4; traces beside" in printed and "aten::addmm" in printed


def test_again_and_again(profiled, tmp_path):
    seen = []

    def each(s):
        last = s.profiled()
        if last is not None and last.last_step not in seen:
            seen.append(last.last_step)

    profiled(14, each, repeat=0, wait=1)
    assert seen == [5, 9, 13] and list(traces(tmp_path)) == ["13", "5", "9"]


def test_a_loop_that_ends_in_the_middle(profiled, tmp_path, capsys):
    profiled(5, active=100)
    assert "profile: steps 3 to 5; traces beside" in capsys.readouterr().out
    assert list(traces(tmp_path)) == ["5"]


def test_accumulated_batches_are_one_step(tmp_path):
    options = {"profile": SHORT, "profile_folder": tmp_path, "accumulate_grad_batches": 2}
    with session(strategy=None, **options) as s:
        train(8)
        found = s.profiled()
    assert (found.first_step, found.last_step) == (3, 4)
    assert {one.name: one.calls for one in found.operators}["aten::addmm"] == 8


def test_ranges_as_a_block_and_a_decorator(tmp_path):
    with session(strategy=None, profile=SHORT, profile_folder=tmp_path) as s:

        @s.range("measure")
        def measure():
            with s.range("inner"):
                torch.ones(4).sum()

        train(6, lambda: (measure(), measure()))
        found = s.profiled()
    assert {one.name: one.calls for one in found.ranges} == {"inner": 4, "measure": 4}
    assert {"measure", "inner"} <= {event["name"] for event in traces(tmp_path)["4"]}


def test_a_range_without_the_option_records_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with session(strategy=None) as s, torch.profiler.profile() as profiler:
        with s.range("mine"):
            torch.ones(4).sum()
        train(20)
    assert "mine" in {event.name for event in profiler.events()}
    assert not list(tmp_path.iterdir())


def test_too_few_steps(profiled):
    with pytest.warns(UserWarning, match="made 2 real steps, and the first to be recorded is 3"):
        profiled(2)


def test_a_profiler_of_the_loop_goes_first(tmp_path):
    with (
        pytest.warns(UserWarning, match="another profiler is recording, and torch has one"),
        torch.profiler.profile() as own,
        session(strategy=None, profile=SHORT, profile_folder=tmp_path),
    ):
        train(6)
    assert "aten::addmm" in {event.name for event in own.events()}


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.warns(UserWarning, match=r"profile: \w+Error: .*Training continues"),
        session(strategy=None, profile=SHORT, profile_folder=tmp_path / "file") as s,
    ):
        values = train(6)
        found = s.profiled()
    assert torch.equal(values, train(6))
    assert found.trace == "" and found.last_step == 4


def test_nothing_is_left_on(profiled):
    with pytest.raises(ZeroDivisionError):
        profiled(8, lambda s: 1 / 0 if s._context.steps.count == 3 else None)
    assert not _profiler_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.profiler.profile() as after:
            torch.ones(3).sum()
    assert "aten::sum" in {event.name for event in after.events()}


def test_the_range_test_of_learning_rates_is_not_recorded(tmp_path):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    loader = DataLoader(torch.randn(64, 8), batch_size=4)
    with session(strategy=None, profile=SHORT, profile_folder=tmp_path) as s:
        s.find_lr(step, optimizer, loader, steps=12)
        assert s.profiled() is None
        train(5)
        assert s.profiled().last_step == 4
