"""The options of ``precision="fp8"``, and the devices that can do it."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torchbus.plugin import Context, Unsupported, UsageError

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
