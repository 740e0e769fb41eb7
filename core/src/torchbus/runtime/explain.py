"""``s.explain()``: a summary of the session on one screen."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence, Sized
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from torchbus import objects
from torchbus.bus import discovery
from torchbus.runtime.user_code import users_frame

if TYPE_CHECKING:
    from torchbus.bus.registry import Bus
    from torchbus.runtime.context import Context

LABEL_COLUMNS = 12
SHOWN_THINGS = 8


def explain(session: Context) -> str:
    """Return the whole text, wrapped to the terminal's width, or to 100 columns."""
    return "\n".join(
        [
            f"torchbus {_version('torchbus')}, torch {torch.__version__}",
            *(
                line
                for name, texts in _sections(session).items()
                for line in _section(name, [session.redactor.text(text) for text in texts])
            ),
        ]
    )


def _sections(session: Context) -> dict[str, list[str]]:
    """Return the texts by section, in the order in which they are shown."""
    sections: dict[str, list[str]] = {"ranks": _ranks(session)}
    contributed: dict[str, list[str]] = {}
    for lines in session.bus.hook.explain_lines(session=session):
        for section, texts in (lines or {}).items():
            contributed.setdefault(section, []).extend(texts)
    sections["strategy"] = contributed.pop("strategy", ["none: the loop runs as without a session"])
    sections |= _things(session)
    notes = contributed.pop("notes", [])
    sections |= contributed
    sections["plugins"] = [", ".join(_plugins(session)) or "none"]
    sections["patches"] = [", ".join(session.seams.places()) or "none: torch is unchanged"]
    if notes:
        sections["notes"] = notes
    return sections


def _section(name: str, texts: list[str]) -> list[str]:
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    lines: list[str] = []
    for text in texts:
        indent = " " * (LABEL_COLUMNS + 2)
        lines += textwrap.wrap(
            text, max(width, 60), initial_indent=indent[2:], subsequent_indent=indent
        ) or [""]
    lines[0] = name.ljust(LABEL_COLUMNS) + lines[0].lstrip()
    return lines


def _ranks(session: Context) -> list[str]:
    world = session.world
    how = {
        "nobody": "this process alone",
        "session": (
            "started by running the script again (what it writes before the block is written by"
            " every rank)"
        ),
        "spawn": "started by spawn: new processes call the decorated function",
        "fork": "started by fork: only the block runs in each",
    }.get(world.launched_by, f"started by {world.launched_by}")
    nodes = f" on {world.num_nodes} nodes" if world.num_nodes > 1 else ""
    sizes = " x ".join(f"{size} ({name})" for name, size in world.shape)
    mesh = f" as {sizes}" if len(world.shape) > 1 else ""
    chosen = f" ({session.job.launch_rule})" if session.job and session.job.launch_rule else ""
    return [
        f"{world.world_size}{nodes}{mesh}, this is rank {world.rank} on {world.device};"
        f" {how}{chosen};"
        f" {torch.get_num_threads()} threads each"
    ]


def _things(session: Context) -> dict[str, list[str]]:
    models = [
        model
        for model in objects.outermost(objects.alive(Module))
        if not objects.is_internal(model)
    ]
    return {
        "models": _list(
            session,
            [model for model in models if any(True for _ in model.parameters())],
            partial(_model, session.bus),
        ),
        "optimizers": _list(session, objects.optimizers(), _optimizer),
        "loaders": _list(session, objects.alive(DataLoader), _loader),
    }


def _list(session: Context, things: Sequence[object], summarise: Any) -> list[str]:
    frame = users_frame()[0]
    named = sorted(
        ((objects.name_of(thing, frame), thing) for thing in things), key=lambda pair: not pair[0]
    )
    lines = []
    for name, thing in named[:SHOWN_THINGS]:
        what = session.bus.hook.describe(thing=thing) or ""
        label = f"{name}: {type(thing).__name__}" if name else type(thing).__name__
        lines.append(f"{label}, {summarise(thing)}" + (f": {what}" if what else ""))
    if len(named) > SHOWN_THINGS:
        lines.append(f"and {len(named) - SHOWN_THINGS} more")
    return lines or ["none seen"]


def _model(bus: Bus, model: Module) -> str:
    parameters = list(model.parameters())
    frozen = sum(not parameter.requires_grad for parameter in parameters)
    count = sum(objects.shape_of(parameter, bus).numel() for parameter in parameters)
    return f"{count:,} parameters in {len(parameters)} tensors" + (
        f" ({frozen} frozen)" if frozen else ""
    )


def _optimizer(optimizer: Optimizer) -> str:
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    rates = ", ".join(
        f"{float(group['lr']):g}"
        for group in optimizer.param_groups
        if isinstance(group.get("lr"), (Real, torch.Tensor))
    )
    return f"{count} tensors" + (f", lr {rates}" if rates else "")


def _loader(loader: DataLoader[object]) -> str:
    try:
        size = f"{len(cast(Sized, loader.dataset))} samples"
    except TypeError:
        size = "samples uncounted"
    batch_size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return f"{size}, batch_size {batch_size}"


def _plugins(session: Context) -> list[str]:
    """Return the plugins that the call asked for, with their versions.

    Parts of plugins (whose names have a dot) and those of the core are left out.
    """
    packages = [
        (name, type(plugin).__module__.split(".")[0]) for name, plugin in session.bus.plugins()
    ]
    return [
        f"{name} {discovery.version_of(package)}".rstrip()
        for name, package in packages
        if package != "torchbus" and "." not in name
    ]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "(not installed as a package)"
