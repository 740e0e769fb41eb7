"""``precision="fp8"``: the matrix products of linear layers in float8, by torchao."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Callable, Generator
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.optim import Optimizer
from torchbus.plugin import Context, Surround, Unsupported, UsageError, hookimpl, mark_internal

from torchbus_amp._compat import share_parameters, undo_inductor_patch
from torchbus_amp.models import Args, Autocast, Kwargs, T
from torchbus_device import accelerators

OLDEST = (0, 18)
CAPABILITY = (8, 9)
RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
PIP = "pip install 'torchao>=0.18'"
INSTEAD = "Use precision='bf16-mixed'"


def read(config: object) -> Any:
    """Return torchao's config for a recipe's name, or the config that is given.

    Raises UsageError if torchao is missing or too old, or if it is neither.
    """
    _require_torchao()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.float8 import Float8LinearConfig
    if isinstance(config, Float8LinearConfig):
        return _checked(config)
    if config not in RECIPES:
        near = difflib.get_close_matches(str(config), RECIPES, 1, 0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(
            f"fp8_config={config!r} is unknown: {hint}Use {', '.join(map(repr, RECIPES))}, or"
            " torchao's Float8LinearConfig"
        )
    # a partial batch need not be a multiple of 16
    return dataclasses.replace(Float8LinearConfig.from_recipe_name(config), pad_inner_dim=True)


def _checked(config: Any) -> Any:
    if config.enable_fsdp_float8_all_gather:
        raise UsageError(
            "fp8_config with enable_fsdp_float8_all_gather=True: weights would become tensors of"
            " torchao's own, which the optimizer doesn't have. Leave it out"
        )
    return config


def _require_torchao() -> None:
    try:
        found = version("torchao")
    except PackageNotFoundError:
        raise UsageError(f"precision='fp8' needs torchao, which is not installed: {PIP}") from None
    if tuple(map(int, found.split("+")[0].split(".")[:2])) < OLDEST:
        raise UsageError(
            f"precision='fp8' needs torchao 0.18 or later, and {found} is installed: {PIP}"
        )


def refuse_device_type(kind: str, config: Any) -> None:
    """Raise UsageError for a device type without float8. Uses no device, so ranks can fork."""
    if not config.emulate and not hasattr(accelerators.module(kind), "get_device_capability"):
        raise UsageError(
            f"precision='fp8' on {kind}: it multiplies no float8. It needs a GPU of compute"
            f" capability 8.9 or later, such as an H100. {INSTEAD}"
        )


def refuse_device(device: torch.device, config: Any) -> None:
    """Raise UsageError for a device that is too old, once a rank has it."""
    if config.emulate:
        return
    found = accelerators.module(device.type).get_device_capability(device)
    if not isinstance(found, tuple) or found < CAPABILITY:
        shown = ".".join(map(str, found)) if isinstance(found, tuple) else "another kind"
        raise UsageError(
            f"precision='fp8' on {device}: its compute capability is {shown}, and float8 needs 8.9"
            f" or later, as an H100 has. {INSTEAD}"
        )


def refuse_tp(session: Context) -> None:
    """Raise Unsupported if ranks share layers."""
    if session.options.get("tp") is not None or session.options["strategy"] == "tp":
        raise Unsupported(
            "precision='fp8' with tp: each rank would choose a different scale for its part of a"
            f" layer. {INSTEAD}"
        )


MULTIPLE = 16
SHOWN = 4


class Float8(Autocast):
    """bfloat16 autocast, in which linear layers multiply in float8.

    Layers and parameters stay the same objects. A layer's forward is computed by its twin, which
    torchao has made, with the layer's own parameters.
    """

    def __init__(self, session: Context, config: Any, skip: tuple[str, ...]) -> None:
        super().__init__(session, torch.bfloat16)
        self._config, self._skip = config, skip
        self._twins: WeakKeyDictionary[Module, Module] = WeakKeyDictionary()
        self._left: WeakKeyDictionary[Module, dict[str, str]] = WeakKeyDictionary()
        self._layers = Surround(self._in_float8)
        session.on_close.callback(self._layers.close)
        session.on_close.callback(undo_inductor_patch())

    @hookimpl(wrapper=True)
    def parameters_added(  # type: ignore[override]  # the base's is not a wrapper
        self, optimizer: Optimizer | None, parameters: list[Tensor]
    ) -> Generator[None, object, object]:
        """Take the layers before any strategy, which may change their classes."""
        self.add_models_of(optimizer, parameters)
        return (yield)

    def prepare(self, model: Module) -> None:
        left = self._left.setdefault(model, {})
        for path, layer in model.named_modules():
            if type(layer) is nn.Linear and layer not in self._twins:
                why = self._why_not(layer, path)
                if why:
                    left[path] = why
                else:
                    self._twins[layer] = _twin(layer, self._config)
                    self._layers.add(layer)

    def _why_not(self, layer: nn.Linear, path: str) -> str:
        if any(fnmatchcase(path, pattern) for pattern in self._skip):
            return "fp8_skip"
        sizes = (layer.in_features, layer.out_features)
        if any(size % MULTIPLE for size in sizes):
            return f"{sizes[0]} x {sizes[1]}, not multiples of {MULTIPLE}"
        return ""

    def _in_float8(self, layer: Module, forward: Callable[..., T], args: Args, kwargs: Kwargs) -> T:
        (given,) = [*args, *kwargs.values()]
        assert isinstance(given, Tensor)
        kind = given.device.type
        if torch.is_autocast_enabled(kind):
            given = given.to(torch.get_autocast_dtype(kind))
        with torch.autocast(kind, enabled=False):
            output: T = self._twins[layer].forward(given)
        return output

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"float8": [self._line(model) for model in self._left] or ["no model yet"]}

    def _line(self, model: Module) -> str:
        converted = [path for path, part in model.named_modules() if part in self._twins]
        left = "; ".join(f"{path} ({why})" for path, why in self._left[model].items())
        return (
            f"{type(model).__name__}: {len(converted)} linear layers multiply in float8:"
            f" {_few(converted)}" + (f"; left in bfloat16: {left}" if left else "")
        )

    def summary(self) -> str:
        return (
            super().summary() if self.foreign else f"{super().summary()}; linear layers in float8"
        )


def _few(paths: list[str]) -> str:
    named = [path or "the model itself" for path in paths]
    more = len(named) - SHOWN
    return (", ".join(named[:SHOWN]) or "none") + (f" and {more} more" if more > 0 else "")


def _twin(layer: nn.Linear, config: Any) -> Module:
    """Torchao's layer, which no part of the session takes for the loop's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.float8 import convert_to_float8_training

        twin: Module = convert_to_float8_training(layer, config=config)
    share_parameters(twin, layer)
    mark_internal(twin)
    return twin
