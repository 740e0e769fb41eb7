"""Same loop, same numbers: how the samples of a batch are divided and weighted. In bfloat16,
parameters move as in float64, but for the rounding of each gradient.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.run import BATCH, LoopRun

LEFT = 5
"""The number of samples in a last batch that neither two nor three ranks can share evenly."""


def train(run: LoopRun, size: int, *, batch: int = BATCH, epochs: int = 2) -> None:
    """Run a plain loop, and record its results."""
    model = run.model()
    optimizer = run.optimizer(model)
    losses = []
    torch.manual_seed(3)
    for _ in range(epochs):
        for xy in run.loader(size, batch=batch, shuffle=True):
            optimizer.zero_grad()
            loss = run.loss(model, xy)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    run.note_state(model=model)
    run.note_gradients(model=model)
    run.note("steps", len(losses))


def one_process(run: LoopRun) -> None:
    """N ranks with batch B end with the parameters of one process with batch N * B."""
    train(run, 2 * BATCH)


def ragged_end(run: LoopRun) -> None:
    """In a batch that the ranks share unevenly, each gradient counts by its samples."""
    train(run, BATCH + LEFT)


def no_samples(run: LoopRun) -> None:
    """A rank without samples in the last batch repeats some, and its gradient counts nothing."""
    train(run, BATCH + 1)


def not_a_number(run: LoopRun) -> None:
    """The gradient of a rank without samples is replaced by zeros, even if it is not a number."""
    model = run.model()
    optimizer = run.optimizer(model)
    for number, xy in enumerate(run.loader(BATCH + 1)):
        optimizer.zero_grad()
        loss = run.loss(model, xy)
        repeats = number == 1 and run.part > 0
        (loss * float("nan") if repeats else loss).backward()
        optimizer.step()
    run.note_state(model=model)


def global_batch(run: LoopRun) -> None:
    """With batch="global", the ranks divide the script's own batch, evenly or not."""
    model = run.model()
    optimizer = run.optimizer(model)
    for xy in run.loader(2 * BATCH + LEFT, batch=(BATCH - 1) * run.parts):
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        optimizer.step()
    run.note_state(model=model)


class Scaled(nn.Module):
    """A model whose output is scaled by a buffer."""

    def __init__(self, inner: nn.Module, scale: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x) * self.scale
        return y


def first_values(run: LoopRun) -> None:
    """Before their first use, all ranks get rank 0's parameters and buffers."""
    model = Scaled(run.model(seed=run.rank), torch.rand(3).to(run.dtype))
    optimizer = run.optimizer(model)
    for xy in run.loader(2 * BATCH):
        optimizer.zero_grad()
        run.loss(model, xy).backward()
        optimizer.step()
    run.note_state(model=model)


def loss_value(run: LoopRun) -> None:
    """After backward, the loss holds the mean over the samples of all ranks."""
    model = run.model()
    optimizer = run.optimizer(model)
    losses = []
    for xy in run.loader(BATCH + LEFT):
        optimizer.zero_grad()
        loss = run.loss(model, xy)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    run.note("losses", losses)


def _autocast(run: LoopRun, by_loop: bool) -> AbstractContextManager[object]:
    if run.is_alone or not by_loop:
        return nullcontext()
    return torch.autocast("cpu", torch.bfloat16)


def _train_rounded(run: LoopRun, by_loop: bool) -> None:
    model = run.model()
    if not run.is_alone:
        model.float()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = run.optimizer(model)
    for x, y in run.loader(2 * BATCH + 5):
        optimizer.zero_grad()
        with _autocast(run, by_loop):
            output = model(x if run.is_alone else x.float())
            loss = (output.to(y.dtype) - y).square().mean()
        loss.backward()
        optimizer.step()
    run.rounds_to(torch.bfloat16)
    run.note_movement(before, model)


def bf16_in_loop(run: LoopRun) -> None:
    """A loop that uses torch.autocast itself learns as much as in float64."""
    _train_rounded(run, by_loop=True)


def bf16_by_plugin(run: LoopRun) -> None:
    """With precision="bf16-mixed", a loop learns as much as in float64."""
    _train_rounded(run, by_loop=False)


WEIGHTED = "Reduce gradients in the dtype of their parameters, and weight them as in float32."
RULES = (
    Rule(
        "one-process",
        one_process,
        "Average the gradients of all ranks before run_backward returns: in place, in the"
        " average(tensors) of a torchbus_strategy.strategy.Strategy.",
        essential=True,
    ),
    Rule(
        "ragged-end",
        ragged_end,
        "Start each backward with this rank's weight: call.start(session.share.weight).",
    ),
    Rule(
        "no-samples",
        no_samples,
        "Give a gradient of weight 0 no part in the mean: session.share.weight is 0.0 on a rank"
        " that repeats samples.",
    ),
    Rule(
        "not-a-number",
        not_a_number,
        "Replace the gradients of a rank whose weight is 0 by zeros: NaN times 0 is NaN.",
    ),
    Rule(
        "global-batch",
        global_batch,
        "Let torchbus-sampler divide the data (companions), and weight by session.share.weight.",
        {"batch": "global"},
        ("sampler",),
    ),
    Rule(
        "first-values",
        first_values,
        "Copy rank 0's parameters and buffers to all ranks at parameters_added and model_found.",
    ),
    Rule(
        "loss-value",
        loss_value,
        "Write the mean over ranks, by weight, into call.loss once backward is over.",
    ),
    Rule("bf16-in-loop", bf16_in_loop, WEIGHTED),
    Rule("bf16-by-plugin", bf16_by_plugin, WEIGHTED, {"precision": "bf16-mixed"}, ("amp",)),
)
