"""bfloat16: parameters move as in float64, but for the rounding of each gradient."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from torchbus_testing.conformance.rule import Rule
from torchbus_testing.conformance.run import BATCH, Run


def _autocast(run: Run, by_loop: bool) -> AbstractContextManager[object]:
    if run.is_alone or not by_loop:
        return nullcontext()
    return torch.autocast("cpu", torch.bfloat16)


def _train(run: Run, by_loop: bool) -> None:
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


def bf16_in_loop(run: Run) -> None:
    """A loop that uses torch.autocast itself learns as much as in float64."""
    _train(run, by_loop=True)


def bf16_by_plugin(run: Run) -> None:
    """With precision="bf16-mixed", a loop learns as much as in float64."""
    _train(run, by_loop=False)


WEIGHTED = "Reduce gradients in the dtype of their parameters, and weight them as in float32."
RULES = (
    Rule("bf16-in-loop", bf16_in_loop, WEIGHTED),
    Rule("bf16-by-plugin", bf16_by_plugin, WEIGHTED, {"precision": "bf16-mixed"}, ("amp",)),
)
