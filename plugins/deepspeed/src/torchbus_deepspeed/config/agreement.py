"""What both the config and the loop say must be the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchbus.plugin import UsageError

AUTO = "auto"
WORDS = "{}, and config says {}={!r}: {}"
PRECISIONS = {"bf16": ("bf16-true",), "fp16": ("16-true",)}


def check(config: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise UsageError for clipping, accumulation or precision that contradict the session's."""
    _check_clipping(config, options)
    _check_accumulation(config, options)
    _check_precision(config, options)


def _check_clipping(config: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    ours = options.get("gradient_clip_val")
    theirs = config.get("gradient_clipping", AUTO)
    if ours is None or theirs == AUTO:
        return
    if options.get("gradient_clip_algorithm", "norm") != "norm" or float(theirs) != float(ours):
        what = f"gradient_clip_val={ours!r}"
        remedy = "leave gradient_clipping out, or write 'auto'"
        raise UsageError(WORDS.format(what, "gradient_clipping", theirs, remedy))


def _check_accumulation(config: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    theirs = config.get("gradient_accumulation_steps", AUTO)
    ours = options.get("accumulate_grad_batches", 1)
    if theirs not in (AUTO, ours):
        what = f"accumulate_grad_batches={ours!r}"
        remedy = f"pass accumulate_grad_batches={theirs!r}, or leave the key out"
        raise UsageError(WORDS.format(what, "gradient_accumulation_steps", theirs, remedy))


def _check_precision(config: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    ours = options.get("precision")
    on = [name for name in PRECISIONS if (config.get(name) or {}).get("enabled") is True]
    if len(on) > 1:
        raise UsageError("config enables both bf16 and fp16: enable one")
    for name, fitting in PRECISIONS.items():
        enabled = (config.get(name) or {}).get("enabled", AUTO)
        if ours in fitting and enabled is False:
            remedy = "write 'auto'"
            what = f"precision={ours!r}"
            raise UsageError(WORDS.format(what, f"{name}.enabled", enabled, remedy))
        if name in on and ours is not None and ours not in fitting:
            what = f"precision={ours!r}"
            remedy = f"leave precision out, or use {fitting[0]!r}"
            raise UsageError(WORDS.format(what, f"{name}.enabled", True, remedy))
    if ours == "16-mixed":
        raise UsageError(
            "precision='16-mixed' under DeepSpeed: its loss scaling reads p.grad, which is None."
            " Use config={'fp16': {'enabled': True}}, or precision='bf16-mixed'"
        )


def fill_precision(config: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Let DeepSpeed know that the session's precision makes the model one of 16 bits."""
    for name, fitting in PRECISIONS.items():
        if options.get("precision") in fitting:
            config[name] = {**(config.get(name) or {}), "enabled": True}


def check_batch(config: Mapping[str, Any], count: int, ranks: int, windows: int) -> None:
    """Raise UsageError for batch sizes that are not those of the loop's first batch.

    ``count``: samples of all ranks in it. ``windows``: batches per step.
    """
    sizes = {
        "train_micro_batch_size_per_gpu": (-(-count // ranks), "samples per rank"),
        "train_batch_size": (count * windows, "samples per step"),
    }
    for key, (ours, what) in sizes.items():
        theirs = config.get(key, AUTO)
        if theirs not in (AUTO, ours):
            remedy = "write 'auto', or leave the key out"
            raise UsageError(WORDS.format(f"the loop has {ours} {what}", key, theirs, remedy))
