"""Errors: those that a loop catches, those that end it, and ranks that go different ways."""

from __future__ import annotations

from torch import Tensor

from torchbus_testing.conformance import judgement
from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.run import BATCH, LoopRun


class Planned(Exception):
    """The exception that a loop of the kit raises on purpose."""


def _fail(gradient: Tensor) -> Tensor:
    raise Planned("in backward")


def error_in_forward(run: LoopRun) -> None:
    """A loop may catch an error of forward, skip the batch, and continue."""
    model = run.model()
    optimizer = run.optimizer(model)
    for number, xy in enumerate(run.loader(3 * BATCH + 5)):
        optimizer.zero_grad()
        try:
            loss = run.loss(model, xy)
            if number == 1:
                raise Planned("in forward")
            loss.backward()
        except Planned:
            continue
        optimizer.step()
    run.note_state(model=model)


def error_in_backward(run: LoopRun) -> None:
    """A loop may catch an error of backward, clear the gradients, and continue."""
    model = run.model()
    optimizer = run.optimizer(model)
    for number, (x, y) in enumerate(run.loader(3 * BATCH + 5)):
        optimizer.zero_grad()
        output = model(x)
        if number == 1:
            output.register_hook(_fail)
        try:
            (output - y).square().mean().backward()
        except Planned:
            optimizer.zero_grad()
            continue
        optimizer.step()
    run.note_state(model=model)


def error_on_one_rank(run: LoopRun) -> None:
    """An error on one rank ends all ranks within seconds, and is shown; torch is unchanged."""
    model = run.model()
    optimizer = run.optimizer(model)
    for number, xy in enumerate(run.loader(4 * BATCH)):
        if number == 1 and run.rank == 1:
            raise Planned("on one rank")
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        optimizer.step()


def left_out(run: LoopRun) -> int:
    """Return the number of the batch that this rank leaves out, which differs between ranks."""
    return 1 + min(run.rank, 1)


def diverged(run: LoopRun) -> None:
    """Ranks that leave out different batches raise RanksDiverged, even if they call backward
    equally often.
    """
    model = run.model()
    optimizer = run.optimizer(model)
    for number, xy in enumerate(run.loader(4 * BATCH)):
        if number == left_out(run):
            continue
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        optimizer.step()
    run.note_state(model=model)


def uneven_steps(run: LoopRun) -> None:
    """A rank that steps without backward, while another one calls backward, ends in an error."""
    model = run.model()
    optimizer = run.optimizer(model)
    for number, xy in enumerate(run.loader(4 * BATCH)):
        optimizer.zero_grad()
        loss = run.loss(model, xy)
        if number != left_out(run):
            loss.backward()
        optimizer.step()
    run.note_state(model=model)


COMPARE = (
    "In each backward compare where the ranks are (session.job.backwards, real steps,"
    " session.share.position), and raise RanksDiverged."
)
RULES = (
    Rule("error-in-forward", error_in_forward, "Begin no collective before backward is called."),
    Rule(
        "error-in-backward",
        error_in_backward,
        "Let all ranks come out of run_backward with the error, and keep nothing of the failed"
        " backward.",
    ),
    Rule(
        "error-on-one-rank",
        error_on_one_rank,
        "Let session.start_ranks() start the ranks, and register how to end your collectives:"
        " session.job.on_release(...).",
        judge=judgement.shows_the_first_error,
        essential=True,
    ),
    Rule(
        "divergence",
        diverged,
        COMPARE,
        judge=judgement.ends_as_diverged,
        essential=True,
    ),
    Rule(
        "uneven-steps",
        uneven_steps,
        COMPARE,
        judge=judgement.ends_by_error,
        essential=True,
    ),
)
