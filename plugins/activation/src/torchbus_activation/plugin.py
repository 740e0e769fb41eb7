"""Finds the blocks of models, and checkpoints their activations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint
from torchbus import objects
from torchbus.plugin import Context, Surround, UsageError, hookimpl

from torchbus_activation._compat import NORM_BASE, buffers

DISCOVERY_BACKWARDS = 3
T = TypeVar("T")


class ActivationCheckpointing:
    """Checkpoints activations: blocks discard them after forward, and recompute them in backward.

    Args:
        activation_checkpointing: module classes, or "auto" for the outermost repeated blocks.

    Raises:
        UsageError: the option has another type or value.

    Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
    """

    tried_with = ({"activation_checkpointing": "auto"},)

    def __init__(
        self, *, activation_checkpointing: str | Collection[type[Module]] = "auto"
    ) -> None:
        self._classes = _checked(activation_checkpointing)
        self._surround = Surround(_compute_twice)
        self._blocks: weakref.WeakSet[Module] = weakref.WeakSet()
        self._session: Context | None = None
        self._backwards = 0

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session
        session.on_close.callback(self._surround.close)

    @hookimpl
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is None or (self._session is not None and self._session.captures(optimizer)):
            for model in objects.models_of(parameters):
                self._add(model)

    @hookimpl
    def model_found(self, model: Module) -> None:
        if self._session is not None and self._session.captures(model):
            self._add(model)

    @hookimpl
    def after_backward(self) -> None:
        """End the search for models on one rank. With several ranks the strategy ends it."""
        self._backwards += 1
        if (
            self._backwards == DISCOVERY_BACKWARDS
            and self._session is not None
            and self._session.world_size == 1
        ):
            self._session.end_discovery()

    def _add(self, model: Module) -> None:
        blocks = (
            objects.repeated_blocks(model)
            if self._classes is None
            else _outermost_of(model, self._classes)
        )
        for block in blocks:
            if block not in self._blocks:
                self._blocks.add(block)
                self._surround.add(block)

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        names = (
            ", ".join(sorted({type(block).__name__ for block in self._blocks})) or "none found yet"
        )
        return {
            "activations": [f"{len(self._blocks)} blocks are computed again in backward: {names}"]
        }


def _checked(given: object) -> tuple[type[Module], ...] | None:
    if given == "auto":
        return None
    classes = tuple(given) if isinstance(given, set | frozenset | list | tuple) else ()
    if not classes or not all(isinstance(one, type) and issubclass(one, Module) for one in classes):
        raise UsageError(
            f"activation_checkpointing={given!r}: use a set of module classes, such as {{Block}},"
            " or 'auto'"
        )
    return classes


def _outermost_of(model: Module, classes: tuple[type[Module], ...]) -> list[Module]:
    """Return the modules of these classes that are not inside another one.

    A nested block would be computed a third time.
    """
    found: list[Module] = []
    inside: set[int] = set()
    for module in model.modules():
        if isinstance(module, classes) and id(module) not in inside:
            found.append(module)
            inside.update(id(part) for part in module.modules())
    return found


def _compute_twice(
    block: Module, forward: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, Any]
) -> T:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    outputs: T = checkpoint(
        forward,
        *args,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), counted_already(block)),
        **kwargs,
    )
    return outputs


@contextmanager
def counted_already(block: Module) -> Iterator[None]:
    """Inside, leave running statistics unchanged, because they have already counted the batch."""
    norms = [module for module in block.modules() if isinstance(module, NORM_BASE)]
    retained = [(norm, norm.momentum, buffers(norm).get("num_batches_tracked")) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
        if "num_batches_tracked" in buffers(norm):
            buffers(norm)["num_batches_tracked"] = None
    try:
        yield
    finally:
        for norm, momentum, count in retained:
            norm.momentum = momentum
            if "num_batches_tracked" in buffers(norm):
                buffers(norm)["num_batches_tracked"] = count
