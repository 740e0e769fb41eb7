"""Several models and optimizers, and parameters that come and go."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import SGD

from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.run import BATCH, FEATURES, HIDDEN, OUTPUTS, LoopRun


def two_optimizers(run: LoopRun) -> None:
    """Two models and two optimizers take turns, as in a GAN; one loss goes through both models."""
    maker, judge = run.model(), run.model(seed=1)
    shrink = nn.Linear(OUTPUTS, FEATURES).to(run.dtype)
    of_maker, of_judge = run.optimizer(maker, shrink), run.optimizer(judge)
    for x, y in run.loader(BATCH + 5):
        of_judge.zero_grad()
        made = shrink(maker(x))
        run.loss(judge, (x, y)).backward()
        (0.5 * run.loss(judge, (made.detach(), -y))).backward()
        of_judge.step()
        of_maker.zero_grad()
        run.loss(judge, (made, y)).backward()
        of_maker.step()
    run.note_state(maker=maker, shrink=shrink, judge=judge)


def two_models(run: LoopRun) -> None:
    """One optimizer holds two models, as of an encoder and a decoder."""
    encoder = run.model()
    decoder = nn.Sequential(nn.Linear(OUTPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS)).to(run.dtype)
    optimizer = run.optimizer(decoder, encoder)
    for x, y in run.loader(BATCH + 5):
        optimizer.zero_grad()
        (decoder(encoder(x)) - y).square().mean().backward()
        optimizer.step()
    run.note_state(encoder=encoder, decoder=decoder)


def frozen(run: LoopRun) -> None:
    """Parameters may be frozen from the start, and frozen and thawed later."""
    model = run.model()
    model[0].bias.requires_grad_(False)
    optimizer = run.optimizer(model)
    for number, xy in enumerate(run.loader(4 * BATCH)):
        model[2].requires_grad_(number % 2 == 0)
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        optimizer.step()
    run.note_state(model=model)


def late_parameters(run: LoopRun) -> None:
    """An optimizer may get more parameters in the middle of training."""
    model, late = run.model(), nn.Linear(OUTPUTS, OUTPUTS).to(run.dtype)
    optimizer = run.optimizer(model)
    for number, (x, y) in enumerate(run.loader(4 * BATCH)):
        if number == 2:
            optimizer.add_param_group({"params": list(late.parameters()), "lr": 0.05})
        optimizer.zero_grad()
        output = model(x) if number < 2 else late(model(x))
        (output - y).square().mean().backward()
        optimizer.step()
    run.note_state(model=model, late=late)


def schedule(run: LoopRun) -> None:
    """Schedulers advance once per call, and all ranks decide the same about a metric."""
    model = run.model()
    optimizer = SGD(model.parameters(), lr=0.1)
    halve = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
    for xy in run.loader(4 * BATCH):
        optimizer.zero_grad()
        loss = run.loss(model, xy)
        loss.backward()
        optimizer.step()
        halve.step()
        plateau.step(loss.item())
    run.note("rate", optimizer.param_groups[0]["lr"])
    run.note("best", plateau.best)


RULES = (
    Rule(
        "two-optimizers",
        two_optimizers,
        "Reduce what a backward has reached, and leave the gradients of other optimizers' models"
        " as the loop has left them.",
    ),
    Rule("two-models", two_models, "Reduce what an optimizer holds, of any number of models."),
    Rule(
        "frozen",
        frozen,
        "Look at requires_grad in each backward, not once.",
    ),
    Rule(
        "late-parameters",
        late_parameters,
        "Take up parameters at each parameters_added, also in the middle of training.",
    ),
    Rule(
        "schedule",
        schedule,
        "Reduce the argument of scheduler_metric over ranks; step no scheduler yourself.",
    ),
)
