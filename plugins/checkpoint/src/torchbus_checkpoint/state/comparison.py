"""Compares a checkpoint with this loop, before anything is changed.

All functions raise CheckpointError, which names the first thing that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Module

from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.loop.contents import Contents, Named, class_name
from torchbus_checkpoint.state.common import loose, shapes_in
from torchbus_checkpoint.state.plain import State


def check(
    contents: Contents,
    saved: State,
    saved_weights: list[State],
    registered: Iterable[str],
    where: str,
) -> None:
    """Check the states that all ranks have in common. ``where`` names the checkpoint."""
    for kind, things in (
        ("trained", contents.trained),
        ("other", contents.other),
        ("optimizers", contents.optimizers),
        ("schedulers", contents.schedulers),
        ("scalers", contents.scalers),
    ):
        _check_same(kind, saved[kind], things, where)
    for entry, state, (name, model) in zip(
        saved["trained"] + saved["other"], saved_weights, contents.models, strict=True
    ):
        _check_layers(entry, name, model, where)
        _check_weights(f"{where}: model {entry['name']} ({entry['class']})", state, name, model)
    for entry, (name, optimizer) in zip(saved["optimizers"], contents.optimizers, strict=True):
        _check_optimizer(entry, name, shapes_in(optimizer, contents.shape_of), where)
    _check_loose(len(saved["loose"]), len(loose(contents)), where)
    _check_registered({*saved["registered"]}, {*registered}, where)


REMEDY = "Use the code that wrote the checkpoint, or another folder"
WEIGHTS_ALONE = (
    "Call s.load when they are made. To get the weights alone, read its model.safetensors with"
    " safetensors.torch.load_file"
)


def _check_same(kind: str, saved: list[State], things: Named, where: str) -> None:
    theirs, ours = [entry["class"] for entry in saved], [class_name(thing) for _, thing in things]
    if theirs != ours:
        label = {"trained": "trained models", "other": "other models"}.get(kind, kind)
        raise CheckpointError(
            f"{where} belongs to another loop: it holds the {label} {_listed(saved)}; this loop has"
            f" {', '.join(f'{name} ({class_name(thing)})' for name, thing in things) or 'none'}."
            f" {REMEDY if ours else WEIGHTS_ALONE}"
        )


def _listed(saved: list[State]) -> str:
    return ", ".join(f"{entry['name']} ({entry['class']})" for entry in saved) or "none"


def _check_layers(entry: State, name: str, model: Module, where: str) -> None:
    theirs = (len(entry["training"]), len(entry["requires_grad"]))
    if theirs != (len([*model.modules()]), len([*model.parameters()])):
        raise CheckpointError(
            f"{where}: model {entry['name']} ({entry['class']}) had other layers than {name} of"
            f" this loop. {REMEDY}"
        )


def _check_weights(what: str, saved: State, name: str, model: Module) -> None:
    mine = model.state_dict()
    for key in [*saved, *mine]:
        if key not in mine or key not in saved:
            raise CheckpointError(
                f"{what} {'has no' if key in mine else 'has'} {key}, and {name} of this loop"
                f" {'has' if key in mine else 'has not'}. {REMEDY}"
            )
        theirs, ours = (
            tuple(one.shape) if isinstance(one, Tensor) else None for one in (saved[key], mine[key])
        )
        if theirs != ours:
            raise CheckpointError(
                f"{what}: {key} has shape {theirs}, and in {name} of this loop {ours}. {REMEDY}"
            )


def _check_optimizer(entry: State, name: str, shapes: list[list[list[int]]], where: str) -> None:
    if shapes != entry["shapes"]:
        raise CheckpointError(
            f"{where}: optimizer {entry['name']} held {_counted(entry['shapes'])}; {name} of"
            f" this loop holds {_counted(shapes)}. {REMEDY}"
        )


def _counted(shapes: list[list[list[int]]]) -> str:
    groups = [
        f"{len(group)} tensors with {sum(torch.Size(shape).numel() for shape in group)} numbers"
        for group in shapes
    ]
    return " and ".join(groups) or "nothing"


def _check_loose(theirs: int, ours: int, where: str) -> None:
    if theirs != ours:
        raise CheckpointError(
            f"{where}: {theirs} trained tensors belonged to no model, {ours} do in this loop."
            f" {REMEDY}"
        )


def _check_registered(theirs: set[str], ours: set[str], where: str) -> None:
    for name in theirs ^ ours:
        here, there = "the checkpoint", "this loop"
        if name in ours:
            here, there = there, here
        raise CheckpointError(
            f"{where}: {here} has a registered {name!r}, {there} has not: call"
            f" s.register({name!r}, ...) in both runs"
        )
