"""Which parameters and norm layers of a model each entry of the schedule names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import accumulate

from torch.nn import Module, Parameter
from torchbus.plugin import UsageError

from torchbus_finetune.schedule import Entry, Schedule

COMPILED = "_orig_mod."


def parameters(model: Module, schedule: Schedule) -> dict[Entry, dict[str, Parameter]]:
    """Return the parameters that each entry names, by name, each parameter once.

    A parameter that a model uses in several places has several names. Of all entries that name it,
    the one that spells out most decides.
    """
    held: dict[Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.is_floating_point() or parameter.is_complex():
            held.setdefault(parameter, []).append(name)
    parts: dict[Entry, dict[str, Parameter]] = {entry: {} for entry in schedule}
    for parameter, known in held.items():
        entry = _entry_of([one for name in known for one in _prefixes(name)], schedule)
        if entry is not None:
            parts[entry][known[0]] = parameter
    return parts


def norms(model: Module, schedule: Schedule) -> dict[Entry, list[Module]]:
    """Return the layers with running statistics that each entry names."""
    parts: dict[Entry, list[Module]] = {entry: [] for entry in schedule}
    for name, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None:
            entry = _entry_of(_prefixes(name), schedule)
            if entry is not None:
                parts[entry].append(module)
    return parts


def _prefixes(name: str) -> list[str]:
    """Return ``a``, ``a.b`` and ``a.b.c`` of ``a.b.c``: the modules around it, and itself."""
    parts = name.replace(COMPILED, "").split(".")
    return list(accumulate(parts, "{}.{}".format))


def _entry_of(names: list[str], schedule: Schedule) -> Entry | None:
    """Return the entry that decides, or None. Raises UsageError if two say it differently."""
    naming = [
        entry for entry in schedule if any(fnmatchcase(name, entry.pattern) for name in names)
    ]
    naming.sort(key=lambda entry: -entry.detail)
    if len(naming) > 1 and naming[0].detail == naming[1].detail:
        one, other = naming[:2]
        if one.when != other.when:
            raise UsageError(
                f"unfreeze: {one.pattern!r} at {one.when} and {other.pattern!r} at {other.when}"
                f" both name {names[-1]}, and neither spells out more of it: write the name out for"
                " one of them"
            )
    return naming[0] if naming else None


def nearest(pattern: str, models: Iterable[Module]) -> list[str]:
    """Return the names of modules that look most like the pattern."""
    known = {name for model in models for name in _module_names(model)}
    near = difflib.get_close_matches(pattern, sorted(known), n=3, cutoff=0.4)
    return near or sorted(known, key=lambda name: (name.count("."), name))[:3]


def _module_names(model: Module) -> Iterator[str]:
    for name, _ in model.named_modules():
        if name.replace(COMPILED, "").strip("."):
            yield name.replace(COMPILED, "")
