"""The bar in a real terminal, lines elsewhere, and that neither the loop nor what it prints is
touched by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session
from torchbus.errors import UsageError

from torchbus_progress.listener import Progress
from torchbus_testing.state import assert_torch_unchanged, torch_state

SCRIPTS = Path(__file__).parent / "scripts"
Terminal = Callable[..., Any]
SETUP = (SCRIPTS / "bar_head.py").read_text()


def test_a_bar_while_it_runs_and_a_line_at_the_end(terminal: Terminal) -> None:
    shown = terminal(
        SETUP
        + """
with session(progress=True):
    for epoch in range(2):
        train(loader, net, optimizer)
    with torch.no_grad():
        for x in loader:
            pass
"""
    )
    assert shown.status == 0
    for label in ("epoch 0", "epoch 1", "eval"):
        bars = [bar for bar in shown.bars if bar.startswith(label)]
        assert bars and all(
            re.match(
                rf"{label}  ━*╸?━*  [ \d]\d/40(  .* it/s)?(  \d+:\d\d left)?(  loss 1.000)?$", bar
            )
            for bar in bars
        )
    assert any("loss 1.000" in bar for bar in shown.bars)
    assert len(shown.lines) == 1 and re.match(
        r"2 epochs: 80 steps, .* it/s, loss 1.000, in 0:\d\d$", shown.lines[0]
    )


def test_what_the_loop_prints_stays(terminal: Terminal) -> None:
    shown = terminal(
        SETUP
        + """
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
"""
    )
    assert shown.status == 0 and shown.bars
    expected = [
        "step 0",
        "logged 0",
        "step 8",
        "logged 8",
        "step 16",
        "logged 16",
        "half a linestep 24",
        "logged 24",
        ", the other half",
        "error",
        "step 32",
        "logged 32",
    ]
    assert shown.lines[:-2] == expected and shown.lines[-1] == "after"


def test_a_bar_of_the_loops_own_has_the_terminal_for_itself(terminal: Terminal) -> None:
    shown = terminal(
        SETUP
        + """
from tqdm import tqdm
with session(progress=True):
    train(tqdm(loader, ncols=60, mininterval=0), net, optimizer)
    train(loader, net, optimizer)
""",
        columns=70,
    )
    assert shown.status == 0
    assert (
        re.match(r"100%\|█+\| 40/40 \[00:0\d<00:00, .*it/s\]$", shown.lines[0])
        and len(shown.lines) == 2
    )
    assert not any(bar.startswith("epoch 0") for bar in shown.bars) and any(
        bar.startswith("epoch 1") for bar in shown.bars
    )


def test_it_fits_a_narrow_terminal(terminal: Terminal) -> None:
    shown = terminal(
        SETUP
        + """
with session(progress=True):
    train(loader, net, optimizer)
""",
        24,
    )
    assert shown.status == 0 and any(re.match(r"epoch 0  .*\d/40", line) for line in shown.seen)
    assert all(len(line) < 24 for line in shown.seen)


def test_an_error_in_the_loop_is_seen_as_always(terminal: Terminal) -> None:
    shown = terminal(
        SETUP
        + """
with session(progress=True):
    train(loader, net, optimizer, lambda step: 1 / (20 - step))
"""
    )
    assert shown.status == 1
    assert shown.lines[-1] == "ZeroDivisionError: division by zero" and not any(
        "━" in line for line in shown.lines
    )


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
    with session() as s:  # with companions of what other tests have imported
        before = s._context.seams.places()
    with session(progress=False) as s:
        assert s._context.seams.places() == before


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: session(progress="yes"), "it must be True or False"),
        (lambda: Progress(every_s="1"), "it must be a number of seconds"),  # type: ignore[arg-type]
        (lambda: Progress(every_s=0), "it must be positive"),
    ],
)
def test_bad_input(make: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()
