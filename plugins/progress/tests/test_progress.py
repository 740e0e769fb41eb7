"""The bar in a real terminal, lines elsewhere, and that neither the loop nor what it prints is touched by it."""

from __future__ import annotations

import contextlib
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.errors import UsageError
from torchbus.testing import assert_torch_unchanged, run_script, torch_state

from torchbus_progress import Progress
from torchbus_progress.outputs.lines import Lines

Terminal = Callable[..., Any]
SETUP = """
import logging, sys, time
logging.basicConfig(level=logging.INFO, format="%(message)s")
import torch
from torch.utils.data import DataLoader
from torchbus import session
from torchbus_progress import Progress, listener
from torchbus_progress.outputs import terminal

listener.LARGEST_PART = 1e6  # so that every batch is drawn, however slow the machine is
terminal.Terminal.pause_s = 0.0
terminal.LONG_PASS_S = 1e6

def train(loader, net, optimizer, each=lambda step: None):
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        each(step)

net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
torch.nn.init.ones_(net.weight)
torch.nn.init.zeros_(net.bias)
loader = DataLoader(torch.ones(40, 1))
"""


def test_a_bar_while_it_runs_and_a_line_at_the_end(terminal: Terminal) -> None:
    shown = terminal(SETUP + """
with session(progress=True):
    for epoch in range(2):
        train(loader, net, optimizer)
    with torch.no_grad():
        for x in loader:
            pass
""")
    assert shown.status == 0
    for label in ("epoch 1", "epoch 2", "eval"):
        bars = [bar for bar in shown.bars if bar.startswith(label)]
        assert bars and all(re.match(rf"{label}  ━*╸?━*  [ \d]\d/40(  .* it/s)?(  \d+:\d\d left)?(  loss 1.000)?$", bar) for bar in bars)
    assert any("loss 1.000" in bar for bar in shown.bars)
    assert len(shown.lines) == 1 and re.match(r"2 epochs: 80 steps, .* it/s, loss 1.000, in 0:\d\d$", shown.lines[0])


def test_what_the_loop_prints_stays(terminal: Terminal) -> None:
    shown = terminal(SETUP + """
def say(step):
    if step % 8 == 0:
        print("step", step)
        logging.info("logged %d", step)  # to the stream that was there before the session
    if step == 20:
        print("half a line", end="")
        sys.stdout.flush()
    if step == 30:
        print(", the other half")
        print("error", file=sys.stderr)

with session(progress=True):
    train(loader, net, optimizer, say)
print("after")
""")
    assert shown.status == 0 and shown.bars
    expected = [
        "step 0", "logged 0", "step 8", "logged 8", "step 16", "logged 16", "half a linestep 24", "logged 24", ", the other half", "error",
        "step 32", "logged 32",
    ]  # fmt: skip
    assert shown.lines[:-2] == expected and shown.lines[-1] == "after"


def test_a_bar_of_the_loops_own_has_the_terminal_for_itself(terminal: Terminal) -> None:
    shown = terminal(SETUP + """
from tqdm import tqdm
with session(progress=True):
    train(tqdm(loader, ncols=60, mininterval=0), net, optimizer)
    train(loader, net, optimizer)
""", columns=70)
    assert shown.status == 0
    assert re.match(r"100%\|█+\| 40/40 \[00:0\d<00:00, .*it/s\]$", shown.lines[0]) and len(shown.lines) == 2
    assert not any(bar.startswith("epoch 1") for bar in shown.bars) and any(bar.startswith("epoch 2") for bar in shown.bars)


def test_it_fits_a_narrow_terminal(terminal: Terminal) -> None:
    shown = terminal(SETUP + """
with session(progress=True):
    train(loader, net, optimizer)
""", 24)
    assert shown.status == 0 and any(re.match(r"epoch 1  .*\d/40", line) for line in shown.seen)
    assert all(len(line) < 24 for line in shown.seen)


def test_an_error_in_the_loop_is_seen_as_always(terminal: Terminal) -> None:
    shown = terminal(SETUP + """
with session(progress=True):
    train(loader, net, optimizer, lambda step: 1 / (20 - step))
""")
    assert shown.status == 1
    assert shown.lines[-1] == "ZeroDivisionError: division by zero" and not any("━" in line for line in shown.lines)


@pytest.mark.parametrize("ranks", [1, 2])
def test_lines_where_there_is_no_terminal(ranks: int) -> None:
    result = run_script(SETUP + f"""
with session(Progress(every_s=0.3), strategy="ddp", devices={ranks}):
    train(loader, net, optimizer, lambda step: time.sleep(0.04))
    print("mine")
""", timeout_s=110)
    assert result.ok() and result.stdout == "mine\n"
    *lines, last = result.stderr.splitlines()
    batches = 40 // ranks
    moment = rf"\d+/{batches}, \d+ %(, .* it/s)?(, 0:\d\d left)?(, loss 1.000)?"  # the first may come before any loss
    assert lines and all(re.match(rf"epoch 1: ({moment}|{batches} batches, .*)$", line) for line in lines)
    assert re.match(rf"1 epoch: {batches} steps, .*, loss 1.000, in 0:\d\d$", last)


UNLIKE = """
loader = DataLoader(torch.arange(1.0, 5.0).reshape(4, 1))  # losses 1, 4, 9 and 16
outer = DataLoader(torch.ones(3, 1))
"""


def test_what_stays_of_an_epoch_has_its_mean_loss() -> None:
    """Whatever was drawn last: an evaluation in between, and with gradients, belongs to no epoch."""
    result = run_script(SETUP + UNLIKE + """
with session(Progress(every_s=1e-9)):
    for epoch in range(2):
        train(loader, net, optimizer)
        for x in loader:
            net(x)
    torch.nn.init.constant_(net.weight, 2.0)
    train(loader, net, optimizer, lambda step: list(outer))
""", timeout_s=110)
    assert result.ok()
    ends = [line for line in result.stderr.splitlines() if "batches" in line or "steps" in line]
    assert [re.sub(r", .*, loss|, in .*", lambda found: "" if "in" in found[0] else ": loss", line) for line in ends] == [
        "epoch 1: 4 batches: loss 7.500", "epoch 2: 4 batches: loss 7.500", "epoch 3: 4 batches: loss 30.00", "3 epochs: 12 steps: loss 30.00",
    ]  # fmt: skip


def test_the_mean_loss_of_an_epoch_that_was_left() -> None:
    result = run_script(SETUP + UNLIKE + """
with session(Progress(every_s=100.0)):
    train(loader, net, optimizer)
    train([x for _, x in zip(range(2), loader)], net, optimizer)
    for x in loader:
        net(x).square().mean().backward()
        if x > 1.5:
            break
    optimizer.step()
""", timeout_s=110)
    assert result.ok() and ", loss 2.500, in" in result.stderr.splitlines()[-1]


def test_metrics_for_the_bar_and_a_loop_without_a_loader() -> None:
    result = run_script(SETUP + """
with session(Progress(every_s=0.2)) as s:
    for step in range(30):
        train([torch.ones(1, 1)], net, optimizer)
        s._context.bus.hook.metrics_ready(metrics={"acc": 0.5, "hidden": 1.0}, step=step, epoch=None, prog_bar=frozenset(["acc"]))
        time.sleep(0.02)
""", timeout_s=110)
    assert result.ok()
    *lines, last = result.stderr.splitlines()
    assert lines and all(re.match(r"step: \d+, .* it/s, loss 1.000, acc 0.5000$", line) for line in lines)
    assert last.startswith("done: 30 steps") and "acc 0.5000" in last


class Broken(Lines):
    def draw(self, snapshot: object) -> None:
        raise ValueError("the terminal has gone")


def test_a_bar_that_fails_ends_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchbus_progress.plugin.choose", lambda every_s, shared: Broken(sys.stderr, 0.0001))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with session(progress=True):
            seen = sum(len(batch) for batch in DataLoader(torch.ones(20, 1)))
    assert seen == 20
    assert [str(one.message) for one in caught] == ["the progress bar has stopped: ValueError('the terminal has gone'). Training goes on"]


def test_a_bar_without_room_for_its_lines_goes_on_with_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    streams = [open(tmp_path / "lines", "w")]
    if Path("/dev/full").exists():
        streams.insert(0, open("/dev/full", "w"))
    output = Lines(streams[0], 0.0001)
    monkeypatch.setattr("torchbus_progress.plugin.choose", lambda every_s, shared: output)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with session(progress=True):
            loader = DataLoader(torch.ones(20, 1))
            list(loader)
            output._stream = streams[-1]
            seen = 0
            for batch in loader:
                seen += len(batch)
                time.sleep(0.001)  # ten times what the bar rests
    for stream in streams:
        with contextlib.suppress(OSError):
            stream.close()
    said = "the progress bar could not be written: No space left on device. Training goes on, and so do attempts to write"
    assert seen == 20 and [str(one.message) for one in caught] == [said] * (len(streams) - 1)
    assert (tmp_path / "lines").read_text()


def test_lines_where_all_ranks_print(terminal: Terminal) -> None:
    shown = terminal(SETUP + """
with session(Progress(every_s=1e-9), print_all_ranks=True):
    train(loader, net, optimizer)
""")
    assert shown.status == 0 and shown.bars == []
    assert "1 epoch: 40 steps" in shown.lines[-1]


def test_it_keeps_no_batch_loss_or_loader_alive() -> None:
    import gc
    import weakref

    with session(progress=True):
        loader = DataLoader(torch.ones(4, 1))
        weight = torch.nn.Parameter(torch.ones(1))
        for x in loader:
            loss = (weight * x).sum()
            loss.backward()
            break
        alive = [weakref.ref(loader), weakref.ref(loss)]
        del loader, loss, x
        gc.collect()
        assert [one() for one in alive] == [None, None]


def test_torch_and_the_streams_are_as_they_were() -> None:
    before = torch_state()
    with session(progress=True) as s:
        assert "progress" in s.explain()
    assert_torch_unchanged(before)


def test_progress_false_hears_nothing() -> None:
    with session(progress=False) as s:
        assert s._context.seams.places() == []


@pytest.mark.parametrize(("make", "words"), [
    (lambda: session(progress="yes"), "it must be True or False"),
    (lambda: Progress(every_s="1"), "it must be a number of seconds"),  # type: ignore[arg-type]
    (lambda: Progress(every_s=0), "it must be positive"),
])  # fmt: skip
def test_bad_input(make: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()
