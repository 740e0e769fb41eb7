"""Wrapping: which parts of a model are gathered together, just before they compute."""

from __future__ import annotations

from collections.abc import Collection

from torch.nn import Module
from torchbus.plugin import UsageError, inventory

Policy = str | int | Collection[type[Module]] | None


def check(policy: Policy) -> None:
    """Raise UsageError for what is no policy."""
    if (
        policy is None
        or policy == "auto"
        or (isinstance(policy, int) and not isinstance(policy, bool) and policy > 0)
    ):
        return
    if (
        isinstance(policy, list | tuple | set | frozenset)
        and policy
        and all(isinstance(one, type) and issubclass(one, Module) for one in policy)
    ):
        return
    raise UsageError(
        f"auto_wrap_policy={policy!r}: use 'auto' (repeated blocks), a set of module classes, a"
        " number of parameters, or None for one unit"
    )


def units(model: Module, policy: Policy) -> list[Module]:
    """The parts, inner ones first. The model itself is not among them."""
    inner = [
        module
        for module in model.modules()
        if module is not model and any(True for _ in module.parameters())
    ]
    if policy is None:
        chosen: list[Module] = []
    elif policy == "auto":
        chosen = inventory.repeated_blocks(model)
    elif isinstance(policy, int):
        chosen = _large([module for module in inner if inventory.is_called(module)], policy)
    else:
        chosen = [module for module in inner if isinstance(module, tuple(policy))]  # type: ignore[arg-type]
    return list(reversed(chosen))


def called_parts(model: Module, methods: Collection[str]) -> list[Module]:
    """The model itself or, if it has no forward (a ModuleDict, say), the models in it."""
    if (
        inventory.is_called(model)
        or "forward" in vars(model)
        or any(hasattr(model, name) for name in methods)
    ):
        return [model]
    return [part for child in model.children() for part in called_parts(child, methods)]


def _large(modules: list[Module], parameters: int) -> list[Module]:
    return [
        module
        for module in modules
        if sum(one.numel() for one in module.parameters()) >= parameters
    ]
