"""Chooses the layers to quantise, and checks at the first backward that any were found."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Module
from torchbus.plugin import Context, Unsupported, UsageError, hookimpl

from torchbus_quantize.layers import QuantizedLinear
from torchbus_quantize.libraries import Library

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class LayerChoice(NamedTuple):
    """The layers to quantise by name, and for the other ``nn.Linear`` layers the reason why not."""

    layers: dict[str, nn.Linear]
    left: dict[str, str]


def choose(model: Module, name: str, skip: Collection[str], library: Library) -> LayerChoice:
    """Choose the layers of a model. Raises UsageError for a frozen layer on the meta device."""
    layers: dict[str, nn.Linear] = {}
    left: dict[str, str] = {}
    owners = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module.parameters(recurse=False)
    )
    adapters = {id(part) for adapter in _adapters(model) for part in adapter.modules()}
    parents = {id(child): parent for parent in model.modules() for child in parent.children()}
    for path, layer in model.named_modules():
        if type(layer) is not nn.Linear or id(layer) in adapters:
            continue
        shared = owners[id(layer.weight)] > 1
        why = _why_not(layer, path, parents.get(id(layer)), skip, shared)
        why = why or library.why_not(name, layer.weight)
        if why:
            left[path] = why
        else:
            _refuse_meta(layer, path, name)
            layers[path] = layer
    return LayerChoice(layers, left)


def _why_not(
    layer: nn.Linear, path: str, parent: Module | None, skip: Collection[str], shared: bool
) -> str:
    weight = dict(layer.named_parameters(recurse=False)).get("weight")
    if weight is None:
        return "its weight is computed"
    if weight.requires_grad:
        return "trained"
    if any(fnmatchcase(path, pattern) for pattern in skip):
        return "quantize_skip"
    if not weight.is_floating_point():
        return f"its weight is {weight.dtype}"
    if shared:
        return "another module has the same weight"
    if parent is not None and _reads_weights(parent):
        return f"{type(parent).__name__} reads its weight"
    return ""


def _reads_weights(parent: Module) -> bool:
    """Whether code of torch reads the weights of its parts without calling their ``forward``."""
    return type(parent).__module__.startswith("torch.") and not isinstance(parent, CONTAINERS)


def _adapters(model: Module) -> Iterator[Module]:
    """Yield peft's adapters. A disabled adapter is frozen, but may be trained later."""
    for module in model.modules():
        for name in getattr(module, "adapter_layer_names", ()):
            part = getattr(module, name, None)
            if isinstance(part, Module):
                yield part


def _refuse_meta(layer: nn.Linear, path: str, name: str) -> None:
    if layer.weight.is_meta:
        raise UsageError(
            f"quantize={name!r}: {path}.weight is on the meta device, so it has no values yet. Make"
            " the model with its values, or name the layer in quantize_skip"
        )


def trained(model: Module) -> list[str]:
    """Return the names of the linear layers with a trained weight."""
    return [
        path
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
        and not isinstance(layer, QuantizedLinear)
        and layer.weight.requires_grad
    ]


class EffectCheck:
    """Checks once, when the loop first calls backward, that the options had an effect.

    Raises UsageError otherwise.
    """

    def __init__(
        self,
        session: Context,
        name: str,
        skip: tuple[str, ...],
        done: Mapping[Module, QuantizedLayers],
    ) -> None:
        self._session, self._name, self._skip, self._done = session, name, skip, done

    @hookimpl(tryfirst=True)
    def before_backward(self) -> None:
        self._session.bus.unregister(self)
        refuse_unknown(self._skip, list(self._done))
        if not any(done.layers for done in self._done.values()):
            self._refuse_empty()

    def _refuse_empty(self) -> None:
        """Raise UsageError, because no layer is quantised."""
        found = "; ".join(
            f"{type(model).__name__}: {_why(model, done)}" for model, done in self._done.items()
        )
        raise UsageError(
            f"quantize={self._name!r} finds no frozen nn.Linear in a model that an optimizer trains"
            f" ({found or 'no model found'}). Trained weights are never quantised: freeze them with"
            " requires_grad_(False) before the optimizer is made, for example by peft, or leave"
            " quantize out"
        )


def _why(model: Module, done: QuantizedLayers) -> str:
    names = trained(model)
    left = {path: why for path, why in done.left.items() if why != "trained"}
    parts = [f"{few(names)} trained"] if names else []
    return "; ".join([*parts, *([reasons(left)] if left else [])]) or "no nn.Linear"


def refuse_companions(session: Context, name: str) -> None:
    """Raise Unsupported or UsageError beside a strategy or an option that needs float weights."""
    for registered, plugin in session.bus.plugins():
        if not getattr(plugin, "takes_bytes", True):
            raise Unsupported(
                f"quantize={name!r} with strategy={registered!r}: its engine computes with the"
                " weights themselves, and quantised ones are bytes. Use strategy='ddp' or 'fsdp'"
            )
    if session.options.get("unfreeze") is not None:
        raise UsageError(
            f"quantize={name!r} with unfreeze=...: quantised weights can't be trained later. Leave"
            " one of them out"
        )
    if session.options.get("tp") is not None:
        raise Unsupported(
            f"quantize={name!r} with tp={session.options['tp']}: the ranks would divide rows of"
            " weights, and quantised ones are bytes. Leave tp out"
        )


def refuse_unknown(skip: tuple[str, ...], models: list[Module]) -> None:
    """Raise UsageError for a pattern that names no layer."""
    known = [path for model in models for path, _ in model.named_modules() if path]
    for pattern in skip:
        if not any(fnmatchcase(path, pattern) for path in known):
            near = ", ".join(map(repr, difflib.get_close_matches(pattern, known, 3, 0.4)))
            raise UsageError(
                f"quantize_skip: {pattern!r} names no layer. The nearest: {near or 'none'}"
            )


def refuse_not_finite(weight: Tensor, path: str, name: str) -> None:
    """Raise UsageError for a weight with NaN or infinities, for which no scale exists."""
    if not torch.isfinite(weight).all():
        raise UsageError(
            f"quantize={name!r}: {path}.weight has numbers that are not finite, so no scale fits"
            " it. Look at how it was loaded"
        )


SHOWN = 4


@dataclass
class QuantizedLayers:
    """The quantised layers of a model, the others with the reasons, and the bytes of weights."""

    layers: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    before: int = 0
    after: int = 0

    def add(self, path: str, before: int, after: int) -> None:
        self.layers.append(path)
        self.before += before
        self.after += after

    def describe(self, name: str, library: str) -> str:
        """Return the line for ``explain()``."""
        if not self.layers:
            return "nothing quantised: no frozen linear layer"
        sizes = f"{_bytes(self.before)} are now {_bytes(self.after)}"
        left = reasons({path: why for path, why in self.left.items() if why != "trained"})
        remaining = f"; left as they are: {left}" if left else ""
        many = f"{len(self.layers)} frozen layer{'s' if len(self.layers) > 1 else ''}"
        return f"weights of {many} in {name} by {library}: {sizes}{remaining}"


def reasons(left: dict[str, str]) -> str:
    """Return the first few layers by reason, as text."""
    by_reason: dict[str, list[str]] = {}
    for path, why in left.items():
        by_reason.setdefault(why, []).append(path or "the model itself")
    return "; ".join(f"{few(paths)} ({why})" for why, paths in by_reason.items())


def few(paths: list[str]) -> str:
    more = len(paths) - SHOWN
    return ", ".join(paths[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
