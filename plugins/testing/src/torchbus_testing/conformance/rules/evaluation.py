"""Evaluation, and random numbers in training and outside of it."""

from __future__ import annotations

import torch

from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.run import BATCH, LoopRun
from torchbus_testing.conformance.subject import missing


def evaluation(run: LoopRun) -> None:
    """Under no_grad every rank sees all samples, so the script's own sums are right."""
    model = run.model()
    optimizer = run.optimizer(model)
    loader, tests = run.loader(BATCH + 5), run.loader(BATCH + 1, batch=4 * run.parts)
    for _ in range(2):
        model.train()
        for xy in loader:
            optimizer.zero_grad()
            run.loss(model, xy).backward()
            optimizer.step()
        model.eval()
        count, total = 0, 0.0
        with torch.no_grad():
            for x, y in tests:
                count += len(x)
                total += float((model(x) - y).square().sum())
        if run.session is not None and not missing(("log",)):
            run.session.log("error", total)
    run.note("samples seen", count)
    run.note("sum of errors", total)
    run.note_state(model=model)


def random_numbers(run: LoopRun) -> None:
    """From the first backward of a pass on each rank draws its own numbers in training. In
    evaluation and after the pass, all ranks draw the same.
    """
    model = run.model()
    optimizer = run.optimizer(model)
    for xy in run.loader(2 * BATCH):
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        optimizer.step()
        run.drew("noise in training", torch.rand(4))
        model.eval()
        run.note("evaluation draws the same on all ranks", _draw_alike(run))
        model.train()
        run.drew("noise after evaluation", torch.rand(4))
    run.note("ranks draw the same after the pass", _draw_alike(run))


def _draw_alike(run: LoopRun) -> bool:
    """Whether the next numbers are the same on all ranks."""
    drawn = torch.rand(4)
    return run.is_alone or all(torch.equal(one, drawn) for one in run.here.all_gather(drawn))


def order(run: LoopRun) -> None:
    """Noise in training does not change the order of the data, which is the same on all ranks."""
    model = run.model()
    optimizer = run.optimizer(model)
    torch.manual_seed(3)
    for _ in range(2):
        for x, y in run.loader(BATCH + 5, shuffle=True):
            optimizer.zero_grad()
            run.loss(model, (x, y)).backward()
            optimizer.step()
            if run.parts > 1:
                torch.rand(1 + run.part)
    run.note_state(model=model)


RULES = (
    Rule(
        "evaluation",
        evaluation,
        "Divide only the data that feeds backwards (divides_data with torchbus-sampler), and leave"
        " models whole, or gathered, under no_grad.",
    ),
    Rule(
        "random-numbers",
        random_numbers,
        "Call session.random.split(session.rank) after the first synchronised backward, and"
        " session.random.use('own' or 'evaluation') at mode_changed.",
    ),
    Rule(
        "order",
        order,
        "Call session.random.split(session.rank): the order of the data is drawn from the common"
        " stream only if training has a separate one.",
    ),
)
