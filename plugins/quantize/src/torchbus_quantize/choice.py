"""Selects the layers to quantise, with the reasons for the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import nn
from torch.nn import Module
from torchbus.plugin import UsageError

from torchbus_quantize.layers import QuantizedLinear
from torchbus_quantize.libraries import Library

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Choice(NamedTuple):
    """By name: the layers to quantise, and what keeps the others as they are."""

    layers: dict[str, nn.Linear]
    left: dict[str, str]


def choose(model: Module, name: str, skip: Collection[str], library: Library) -> Choice:
    """Raises UsageError for a frozen layer that has no values yet."""
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
    return Choice(layers, left)


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
    """Whether torch's own code computes with the weights of its parts, past their ``forward``."""
    return type(parent).__module__.startswith("torch.") and not isinstance(parent, CONTAINERS)


def _adapters(model: Module) -> Iterator[Module]:
    """The parts that peft has added: an adapter that is off is frozen, and trained later."""
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
    """The linear layers with a trained weight."""
    return [
        path
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
        and not isinstance(layer, QuantizedLinear)
        and layer.weight.requires_grad
    ]
