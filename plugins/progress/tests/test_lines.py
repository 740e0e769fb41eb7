"""Lines where there is no terminal, mean losses, and a bar that fails."""

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

from torchbus_progress.outputs import LineWriter
from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"
Terminal = Callable[..., Any]
SETUP = (SCRIPTS / "bar_head.py").read_text()


@pytest.mark.parametrize("ranks", [1, 2])
def test_lines_where_there_is_no_terminal(ranks: int) -> None:
    result = fork_script(
        SETUP
        + f"""
with session(Progress(every_s=0.3), strategy="ddp", devices={ranks}):
    train(loader, net, optimizer, lambda step: time.sleep(0.04))
    print("mine")
""",
        timeout_s=110,
    )
    assert result.ok() and result.stdout == "mine\n"
    *lines, last = result.stderr.splitlines()
    batches = 40 // ranks
    # the first may come before any loss
    moment = rf"\d+/{batches}, \d+ %(, .* (it/s|s/it))?(, 0:\d\d left)?(, loss 1.000)?"
    assert lines and all(
        re.match(rf"epoch 0: ({moment}|{batches} batches, .*)$", line) for line in lines
    )
    assert re.match(rf"1 epoch: {batches} steps, .*, loss 1.000, in 0:\d\d$", last)


UNLIKE = """
loader = DataLoader(torch.arange(1.0, 5.0).reshape(4, 1))  # losses 1, 4, 9 and 16
outer = DataLoader(torch.ones(3, 1))
"""


def test_what_stays_of_an_epoch_has_its_mean_loss() -> None:
    """Whatever was drawn last: an evaluation in between, and with gradients, belongs to
    no epoch.
    """
    result = fork_script(
        SETUP
        + UNLIKE
        + """
with session(Progress(every_s=1e-9)):
    for epoch in range(2):
        train(loader, net, optimizer)
        for x in loader:
            net(x)
    torch.nn.init.constant_(net.weight, 2.0)
    train(loader, net, optimizer, lambda step: list(outer))
""",
        timeout_s=110,
    )
    assert result.ok()
    ends = [line for line in result.stderr.splitlines() if "batches" in line or "steps" in line]
    assert [
        re.sub(r", .*, loss|, in .*", lambda found: "" if "in" in found[0] else ": loss", line)
        for line in ends
    ] == [
        "epoch 0: 4 batches: loss 7.500",
        "epoch 1: 4 batches: loss 7.500",
        "epoch 2: 4 batches: loss 30.00",
        "3 epochs: 12 steps: loss 30.00",
    ]


def test_the_mean_loss_of_an_epoch_that_was_left() -> None:
    result = fork_script(
        SETUP
        + UNLIKE
        + """
with session(Progress(every_s=100.0)):
    train(loader, net, optimizer)
    train([x for _, x in zip(range(2), loader)], net, optimizer)
    for x in loader:
        net(x).square().mean().backward()
        if x > 1.5:
            break
    optimizer.step()
""",
        timeout_s=110,
    )
    assert result.ok() and ", loss 2.500, in" in result.stderr.splitlines()[-1]


def test_metrics_for_the_bar_and_a_loop_without_a_loader() -> None:
    result = fork_script(
        SETUP
        + """
with session(Progress(every_s=0.2)) as s:
    for step in range(30):
        train([torch.ones(1, 1)], net, optimizer)
        s._context.bus.hook.metrics_ready(metrics={"acc": 0.5, "hidden": 1.0}, step=step, epoch=None, prog_bar=frozenset(["acc"]))
        time.sleep(0.02)
""",
        timeout_s=110,
    )
    assert result.ok()
    *lines, last = result.stderr.splitlines()
    assert lines and all(
        re.match(r"step: \d+, .* it/s, loss 1.000, acc 0.5000$", line) for line in lines
    )
    assert last.startswith("done: 30 steps") and "acc 0.5000" in last


class Broken(LineWriter):
    def draw(self, snapshot: object) -> None:
        raise ValueError("the terminal has gone")


def test_a_bar_that_fails_ends_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "torchbus_progress.listener.choose", lambda every_s, shared: Broken(sys.stderr, 0.0001)
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with session(progress=True):
            seen = sum(len(batch) for batch in DataLoader(torch.ones(20, 1)))
    assert seen == 20
    assert [str(one.message) for one in caught] == [
        "the progress bar has stopped: ValueError('the terminal has gone'). Training continues"
    ]


def test_a_bar_without_room_for_its_lines_goes_on_with_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    streams = [open(tmp_path / "lines", "w")]
    if Path("/dev/full").exists():
        streams.insert(0, open("/dev/full", "w"))
    output = LineWriter(streams[0], 0.0001)
    monkeypatch.setattr("torchbus_progress.listener.choose", lambda every_s, shared: output)
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
    said = "the progress bar could not be written: No space left on device. Training continues, and the bar will try again"
    assert seen == 20 and [str(one.message) for one in caught] == [said] * (len(streams) - 1)
    assert (tmp_path / "lines").read_text()


def test_lines_where_all_ranks_print(terminal: Terminal) -> None:
    shown = terminal(
        SETUP
        + """
with session(Progress(every_s=1e-9), print_all_ranks=True):
    train(loader, net, optimizer)
"""
    )
    assert shown.status == 0 and shown.bars == []
    assert "1 epoch: 40 steps" in shown.lines[-1]
