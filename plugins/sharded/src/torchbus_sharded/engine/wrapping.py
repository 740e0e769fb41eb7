"""The wrapping policy: which parts of a model are units, gathered together before they compute."""

from __future__ import annotations

from collections.abc import Collection

from torch.nn import Module
from torchbus import objects
from torchbus.plugin import UsageError

from torchbus_sharded._compat.tensors import parameters

Policy = str | int | Collection[type[Module] | str] | None


def check(policy: Policy) -> None:
    """Raise UsageError for an invalid policy."""
    if (
        policy is None
        or policy == "auto"
        or (isinstance(policy, int) and not isinstance(policy, bool) and policy > 0)
    ):
        return
    if (
        isinstance(policy, list | tuple | set | frozenset)
        and policy
        and all(
            isinstance(one, str) or (isinstance(one, type) and issubclass(one, Module))
            for one in policy
        )
    ):
        return
    raise UsageError(
        f"auto_wrap_policy={policy!r}: use 'auto' (repeated blocks), a set of module classes or"
        " their names, a number of parameters, or None for one unit"
    )


def units(model: Module, policy: Policy) -> list[Module]:
    """Return the units, inner ones first, without the model itself.

    Nor is a part that shares a parameter or a module with what is outside of it: a parameter can be
    gathered in one place only.
    """
    inner = [
        module
        for module in model.modules()
        if module is not model and any(True for _ in module.parameters())
    ]
    if policy is None:
        chosen: list[Module] = []
    elif policy == "auto":
        chosen = objects.repeated_blocks(model)
    elif isinstance(policy, int):
        chosen = _large([module for module in inner if objects.is_called(module)], policy)
    else:
        classes = tuple(one for one in policy if isinstance(one, type))
        chosen = [
            module
            for module in inner
            if isinstance(module, classes) or type(module).__name__ in policy
        ]
    holders = _holders(model)
    return [part for part in reversed(chosen) if _has_all_to_itself(part, holders)]


def _holders(model: Module) -> dict[int, set[int]]:
    """Return the modules that own each parameter or module, by ids."""
    found: dict[int, set[int]] = {}
    for module in model.modules():
        for thing in (*parameters(module).values(), *module.children()):
            found.setdefault(id(thing), set()).add(id(module))
    return found


def _has_all_to_itself(part: Module, holders: dict[int, set[int]]) -> bool:
    inside = {id(module): module for module in part.modules()}
    things = [
        *(
            one
            for module in inside.values()
            for one in parameters(module).values()
            if one is not None
        ),
        *(module for module in inside.values() if module is not part),
    ]
    return all(holders[id(thing)] <= inside.keys() for thing in things)


def called_parts(model: Module, methods: Collection[str]) -> list[Module]:
    """Return the model or, if it has no forward (such as a ModuleDict), the models in it."""
    if (
        objects.is_called(model)
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
