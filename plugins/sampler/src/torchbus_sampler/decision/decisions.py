"""The decision for one pass over a loader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn import Module
from torch.utils.data import DataLoader

BYPASSED = (
    "{} has an __iter__ of its own that makes batches without DataLoader's: they can't be divided,"
    " and every rank would train on all of them. Let it call super().__iter__(), divide the data in"
    " the script, or pass replace_sampler=False"
)


@dataclass(frozen=True)
class Decision:
    """Whether to divide, and the reason in words. ``evaluation``: the pass evaluates."""

    divide: bool
    why: str
    evaluation: bool = False


def is_distributed(loader: DataLoader[object]) -> bool:
    """Whether the script divides the loader itself, as by a DistributedSampler."""
    candidates = (
        loader.sampler,
        loader.batch_sampler,
        getattr(loader.batch_sampler, "sampler", None),
    )
    return any(
        hasattr(one, "num_replicas") or type(one).__name__ == "BatchSamplerShard"
        for one in candidates
    )


def without_gradients() -> str:
    """Return why a pass that begins now can't train, or "" if it can."""
    if torch.is_inference_mode_enabled():
        return "iterated under inference_mode"
    return "" if torch.is_grad_enabled() else "iterated under no_grad"


def in_eval_mode(models: Iterable[Module]) -> str:
    """Return why this looks like evaluation: every model is in eval mode. "" if one is not."""
    trained = [model for model in models if any(True for _ in model.parameters())]
    if trained and not any(model.training for model in trained):
        return "iterated while the model is in eval mode"
    return ""


def decide(
    loader: DataLoader[object], models: Iterable[Module], fed_backward: bool, shard_eval: bool
) -> Decision:
    """Decide about one pass over a captured loader.

    ``fed_backward``: an earlier pass, which was divided, has fed a backward.
    """
    if is_distributed(loader):
        return Decision(False, "not divided, its sampler is distributed already")
    evaluation = without_gradients() or ("" if fed_backward else in_eval_mode(models))
    if evaluation and not shard_eval:
        return Decision(False, f"not divided, {evaluation}", evaluation=True)
    if evaluation:
        return Decision(
            True, f"divided without padding, {evaluation} and shard_eval=True", evaluation=True
        )
    return Decision(True, "divided")
