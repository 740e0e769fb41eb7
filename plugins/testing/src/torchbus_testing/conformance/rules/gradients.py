"""Which gradients a loop finds after backward, and what it may do with them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.run import BATCH, FEATURES, HIDDEN, OUTPUTS, Batch, LoopRun

LIMIT = 0.05


def clip_in_loop(run: LoopRun) -> None:
    """Gradients are final after backward: the loop clips by the norm over all samples."""
    model = run.model()
    optimizer = run.optimizer(model)
    norms = []
    for xy in run.loader(2 * BATCH + 5):
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        norms.append(float(clip_grad_norm_(model.parameters(), LIMIT)))
        optimizer.step()
    run.note_state(model=model)
    run.note("norms", norms)


def clip_by_plugin(run: LoopRun) -> None:
    """With gradient_clip_val, each real step has clipped gradients."""
    model = run.model()
    optimizer = run.optimizer(model)
    for xy in run.loader(2 * BATCH + 5):
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        if run.is_alone:
            clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
    run.note_state(model=model)


class Branches(nn.Module):
    """Samples whose first number is positive take a separate branch; one part is not used."""

    def __init__(self, run: LoopRun) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.all = nn.Linear(FEATURES, OUTPUTS).to(run.dtype)
        self.some = nn.Linear(FEATURES, OUTPUTS).to(run.dtype)
        self.unused = nn.Linear(FEATURES, OUTPUTS).to(run.dtype)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.all(x)
        chosen = x[:, 0] > 0
        if not chosen.any():
            return y
        places = chosen.nonzero()[:, 0]
        return y.index_add(0, places, self.some(x[places]))


def uneven_use(run: LoopRun) -> None:
    """Only some ranks may use a parameter. A gradient that no rank has stays None."""
    model = Branches(run)
    optimizer = run.optimizer(model)
    for x, y in run.loader(2 * BATCH):
        place = torch.arange(len(x)) + run.part * len(x)
        x[:, 0] = torch.where(place < 2, x[:, 0].abs(), -x[:, 0].abs())
        optimizer.zero_grad()
        run.loss(model, (x, y)).backward()
        optimizer.step()
    run.note_state(model=model)
    run.note("unused has no gradient", all(p.grad is None for p in model.unused.parameters()))


def two_forwards(run: LoopRun) -> None:
    """Two forwards may come before one backward, and a graph may be used twice."""
    model = run.model()
    optimizer = run.optimizer(model)
    for x, y in run.loader(BATCH + 5):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y) + 0.1 * model(-x).square().mean()
        loss.backward(retain_graph=True)
        (0.5 * loss).backward()
        optimizer.step()
    run.note_state(model=model)


class LocalMethods(nn.Module):
    """A model that is trained by another method than forward."""

    def __init__(self, run: LoopRun) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(FEATURES, HIDDEN).to(run.dtype)
        self.second = nn.Linear(HIDDEN, OUTPUTS).to(run.dtype)

    def loss(self, batch: Batch) -> Tensor:
        x, y = batch
        hidden = torch.tanh(self.first(x))
        return F.mse_loss(F.linear(hidden, self.second.weight, self.second.bias), y)


def other_methods(run: LoopRun) -> None:
    """The loop may reach parameters by any method, by parts of a model, and by bare weights."""
    model = LocalMethods(run)
    optimizer = run.optimizer(model)
    for xy in run.loader(BATCH + 5):
        optimizer.zero_grad()
        model.loss(xy).backward()
        optimizer.step()
    run.note_state(model=model)


def shared_weights(run: LoopRun) -> None:
    """A parameter that a model uses in two places has one gradient."""
    model = run.model()
    model.append(nn.Linear(OUTPUTS, HIDDEN).to(run.dtype))
    model.append(nn.Linear(HIDDEN, HIDDEN).to(run.dtype))
    model.append(nn.Linear(HIDDEN, OUTPUTS).to(run.dtype))
    model[6].weight = model[2].weight
    optimizer = run.optimizer(model)
    for xy in run.loader(BATCH + 5):
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        optimizer.step()
    run.note_state(model=model)


RULES = (
    Rule(
        "clip-in-loop",
        clip_in_loop,
        "Finish every reduction before run_backward returns; of sharded gradients, let"
        " clip_grad_norm_ see the norm of the whole.",
    ),
    Rule(
        "clip-by-plugin",
        clip_by_plugin,
        "Let before_optimizer_step find final gradients, and optimizer.step be the only step.",
        {"gradient_clip_val": LIMIT},
        ("clip",),
    ),
    Rule(
        "uneven-use",
        uneven_use,
        "Reduce every parameter on all ranks, in one order, whichever this rank has used; leave"
        " None what no rank has used.",
    ),
    Rule(
        "two-forwards",
        two_forwards,
        "Reduce per backward, not per forward, and add to gradients that are there.",
    ),
    Rule(
        "other-methods",
        other_methods,
        "Reduce the parameters that optimizers hold (parameters_added), not those of modules that"
        " were called.",
    ),
    Rule("shared-weights", shared_weights, "Reduce each parameter once, by its identity."),
)
