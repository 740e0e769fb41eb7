"""The environment of a loop of the kit: model, data, and the record of its results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, TensorDataset
from torchbus.session import Session

from torchbus_strategy.checks import rounding

TERMS = 256
"""No element of a gradient of the kit's loops sums more."""
STEPS = 16
"""No loop of the kit makes more."""


def of_values(unit: float) -> float:
    """The largest relative difference that rounding explains at the end of a loop."""
    return rounding.of_sums(unit, TERMS, STEPS)


def of_movement(unit: float) -> float:
    """The same for how far parameters have moved, if only single values are rounded.

    So it is under autocast: sums are float32, and each gradient is rounded separately.
    """
    return rounding.of_sums(unit, 1)


def of_zero(bound: float) -> float:
    """What rounding leaves of a zero, as a part of the other values: one sum, of one step."""
    return bound / rounding.of_sums(1.0, 1, STEPS)


BATCH = 12
"""Samples of a global batch, which 1, 2, 3 and 4 ranks can divide."""
FEATURES, HIDDEN, OUTPUTS = 6, 8, 3
GRADIENT = "gradient of"
Batch = tuple[Tensor, ...]


class LoopRun:
    """One execution of a loop: on a rank of a session, or in the one plain process.

    ``session``: None in the plain process. ``folder``: the same for all stages. ``stage``: from 0,
    for rules that need several sessions. ``objects``: the rule's own plugins.
    """

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        session: Session | None = None,
        stage: int = 0,
        objects: tuple[Any, ...] = (),
    ) -> None:
        self.session = session
        self.folder = folder
        self.stage = stage
        self.objects = objects
        engines = [getattr(plugin, "steps_in", dtype) for plugin in self._plugins]
        self.dtype = max([dtype, *engines], key=rounding.unit)
        self.bound = of_values(rounding.unit(self.dtype))
        self.facts: dict[str, object] = {}
        self.draws: dict[str, object] = {}

    @property
    def is_alone(self) -> bool:
        """Whether this is the one plain process."""
        return self.session is None

    @property
    def here(self) -> Session:
        """The session, for loops that call it."""
        assert self.session is not None
        return self.session

    @property
    def rank(self) -> int:
        """The rank, without the session noticing that the loop asks."""
        return 0 if self.session is None else self.session.world.rank

    @property
    def part(self) -> int:
        """Which part of a global batch the rank gets, from 0."""
        return 0 if self.session is None else self.session.world.data.part

    @property
    def parts(self) -> int:
        """Into how many parts the ranks divide a global batch."""
        return 1 if self.session is None else self.session.world.data.parts

    @property
    def hides_gradients(self) -> bool:
        """Whether gradients are the engine's, so that only what they do can be compared."""
        return self._declares("gradients_elsewhere")

    def _declares(self, attribute: str) -> bool:
        """Whether a plugin of the session has an attribute that is True."""
        return any(getattr(plugin, attribute, False) for plugin in self._plugins)

    @property
    def _plugins(self) -> list[object]:
        if self.session is None:
            return []
        return [plugin for _, plugin in self.session._context.bus.plugins()]

    # What a loop needs ---------------------------------------------------------------------------

    def model(self, seed: int = 0) -> nn.Sequential:
        """A net of blocks, with the same parameters each time."""
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(FEATURES, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, OUTPUTS),
        ).to(self.dtype)

    def optimizer(self, *models: nn.Module) -> SGD:
        """With momentum: the state of a step shows in later ones."""
        parameters = [parameter for model in models for parameter in model.parameters()]
        return SGD(parameters, lr=0.1, momentum=0.5)

    def samples(self, size: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(size, FEATURES, generator=generator, dtype=torch.float64)
        y = torch.randn(size, OUTPUTS, generator=generator, dtype=torch.float64)
        return TensorDataset(x.to(self.dtype), y.to(self.dtype))

    def loader(
        self, size: int, *, batch: int = BATCH, windows: int = 1, shuffle: bool = False
    ) -> DataLoader[Batch]:
        """Batches of which the ranks together take ``batch`` samples in each step.

        ``windows``: the batches of a window, all of which the plain process takes at once.
        """
        mine = batch * windows if self.is_alone else batch // self.parts
        return DataLoader(self.samples(size), batch_size=mine, shuffle=shuffle)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """A mean over samples."""
        x, y = batch
        loss: Tensor = (model(x) - y).square().mean()
        return loss

    # What it found -------------------------------------------------------------------------------

    def note(self, name: str, value: object) -> None:
        """Write down what must be the same on all ranks and in the plain process."""
        self.facts[name] = plain(value)

    def drew(self, name: str, value: Tensor) -> None:
        """Record the numbers that each rank with samples must draw separately."""
        self.draws[name] = plain(value)

    def note_state(self, **things: nn.Module | Optimizer) -> None:
        """Write down all tensors of ``state_dict()``. All ranks call it."""
        for name, thing in things.items():
            for key, tensor in tensors(thing.state_dict()):
                self.note(f"{name}.{key}", tensor)

    def note_gradients(self, **models: nn.Module) -> None:
        """Write down the gradients, None where there is none. All ranks call it."""
        if self.hides_gradients:
            return
        for name, model in models.items():
            for key, parameter in model.named_parameters():
                self.note(f"{GRADIENT} {name}.{key}", self._gradient(parameter))

    def _gradient(self, parameter: Tensor) -> Any:
        """The gradient, of a rank that has it if a strategy keeps it on only some."""
        mine = plain(parameter.grad)
        if self.session is None or not self._declares("gradients_in_parts"):
            return mine
        reported = self.session.all_gather_object(mine)
        return next((one for one in [mine, *reported] if one is not None), None)

    def note_movement(self, before: dict[str, Tensor], model: nn.Module) -> None:
        """Write down how far the parameters have moved. All ranks call it."""
        for key, tensor in model.state_dict().items():
            self.note(f"movement of {key}", tensor - before[key])

    def rounds_to(self, dtype: torch.dtype) -> None:
        """The loop computes in another dtype, and notes movements."""
        self.bound = of_movement(rounding.unit(dtype))


def tensors(state: object, prefix: str = "") -> Iterable[tuple[str, Tensor]]:
    """All tensors of a nested state, by the names that lead there."""
    if isinstance(state, Tensor):
        yield prefix, state
    elif isinstance(state, dict | list | tuple):
        pairs = state.items() if isinstance(state, dict) else enumerate(state)
        for key, value in pairs:
            yield from tensors(value, f"{prefix}.{key}".removeprefix("."))


def plain(value: object) -> Any:
    """A value as JSON has it; a tensor of any kind by what a loop reads of it."""
    return value.tolist() if isinstance(value, Tensor) else value
