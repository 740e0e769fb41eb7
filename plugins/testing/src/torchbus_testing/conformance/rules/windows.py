"""Rules about accumulation: cleared gradients, and backwards that communicate nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.run import BATCH, LoopRun

WINDOW = 2
ADDED = "Keep averaged gradients apart from what a backward adds, and reduce only what is new."


def local_windows(run: LoopRun) -> None:
    """A loop that accumulates gradients itself: several backwards, then a step and zero_grad."""
    model = run.model()
    optimizer = run.optimizer(model)
    for number, xy in enumerate(run.loader(3 * BATCH + 5)):
        (run.loss(model, xy) / WINDOW).backward()
        if number % WINDOW:
            optimizer.step()
            optimizer.zero_grad()
    run.note_state(model=model)


def retained_gradients(run: LoopRun) -> None:
    """A loop clears gradients in place, before a step or not at all, and each backward adds."""
    model = run.model()
    optimizer = run.optimizer(model)
    for number, xy in enumerate(run.loader(3 * BATCH + 5)):
        if number % 3 == 0:
            optimizer.zero_grad(set_to_none=False)
        run.loss(model, xy).backward()
        optimizer.step()
    run.note_state(model=model)
    run.note_gradients(model=model)


def zero_grad_late(run: LoopRun) -> None:
    """A loop clears gradients between forward and backward, through the model."""
    model = run.model()
    optimizer = run.optimizer(model)
    for xy in run.loader(2 * BATCH + 5):
        loss = run.loss(model, xy)
        model.zero_grad()
        loss.backward()
        optimizer.step()
    run.note_state(model=model)


def _unsynchronised(run: LoopRun, which: bool) -> AbstractContextManager[object]:
    return nullcontext() if run.is_alone or not which else run.here.no_sync()


def no_sync(run: LoopRun) -> None:
    """Under s.no_sync() a backward communicates nothing; the next one reduces what it left."""
    model = run.model()
    optimizer = run.optimizer(model)
    for number, xy in enumerate(run.loader(4 * BATCH)):
        with _unsynchronised(run, number % WINDOW == 0):
            (run.loss(model, xy) / WINDOW).backward()
        if number % WINDOW:
            optimizer.step()
            optimizer.zero_grad()
    run.note_state(model=model)


def accumulate(run: LoopRun) -> None:
    """With accumulate_grad_batches, a window has the numbers of one large batch."""
    model = run.model()
    optimizer = run.optimizer(model)
    for xy in run.loader(4 * BATCH + 5, windows=WINDOW):
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        optimizer.step()
    run.note_state(model=model)


RULES = (
    Rule("own-windows", local_windows, ADDED),
    Rule("kept-gradients", retained_gradients, ADDED),
    Rule(
        "zero-grad-late",
        zero_grad_late,
        "Don't read or change p.grad between forward and backward.",
    ),
    Rule(
        "no-sync",
        no_sync,
        "If call.sync is False, reduce nothing, and reduce these gradients with the next backward"
        " or before the step.",
        needs=("accumulate",),
    ),
    Rule(
        "accumulate",
        accumulate,
        "Take call.weight and call.factor as torchbus-accumulate sets them: they replace"
        " session.share.weight.",
        {"accumulate_grad_batches": WINDOW},
        ("accumulate",),
    ),
)
