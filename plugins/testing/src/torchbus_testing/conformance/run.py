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
"""The largest number of terms in an element of a gradient of the kit's loops."""
STEPS = 16
"""The largest number of steps of the kit's loops."""


def of_values(unit: float) -> float:
    """Return the largest relative difference that rounding explains at the end of a loop."""
    return rounding.of_sums(unit, TERMS, STEPS)


def of_movement(unit: float) -> float:
    """Return the same for how far parameters have moved, if only single values are rounded.

    This is the case under autocast: sums are float32, and each gradient is rounded separately.
    """
    return rounding.of_sums(unit, 1)


def of_zero(bound: float) -> float:
    """Return what rounding leaves of a zero, relative to the other values: one sum of one step."""
    return bound / rounding.of_sums(1.0, 1, STEPS)


BATCH = 12
"""The number of samples in a global batch, which 1, 2, 3 and 4 ranks can divide."""
FEATURES, HIDDEN, OUTPUTS = 6, 8, 3
GRADIENT = "gradient of"
Batch = tuple[Tensor, ...]


class LoopRun:
    """One execution of a loop: on a rank of a session, or in the one plain process.

    ``session`` is None in the plain process. ``folder`` is the same for all stages. ``stage``
    counts sessions from 0, for rules that need several. ``objects`` are the rule's own plugins.
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
        """The number of the part of a global batch that the rank gets, from 0."""
        return 0 if self.session is None else self.session.world.data.part

    @property
    def parts(self) -> int:
        """The number of parts into which the ranks divide a global batch."""
        return 1 if self.session is None else self.session.world.data.parts

    @property
    def hides_gradients(self) -> bool:
        """Whether an engine stores the gradients, so that only their effects can be compared."""
        return self._declares("gradients_elsewhere")

    def _declares(self, attribute: str) -> bool:
        """Whether a plugin of the session has an attribute that is True."""
        return any(getattr(plugin, attribute, False) for plugin in self._plugins)

    @property
    def _plugins(self) -> list[object]:
        if self.session is None:
            return []
        return [plugin for _, plugin in self.session._context.bus.plugins()]

    # For loops to use ----------------------------------------------------------------------------

    def model(self, seed: int = 0) -> nn.Sequential:
        """Return a net of linear layers, with the same parameters for the same ``seed``."""
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(FEATURES, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, OUTPUTS),
        ).to(self.dtype)

    def optimizer(self, *models: nn.Module) -> SGD:
        """Return SGD with momentum, so that a wrong step shows in later ones."""
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
        """Return a loader from which the ranks together get ``batch`` samples in each step.

        ``windows`` is the number of batches in a window, which the plain process gets as one batch.
        """
        mine = batch * windows if self.is_alone else batch // self.parts
        return DataLoader(self.samples(size), batch_size=mine, shuffle=shuffle)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss, a mean over samples (a scalar of the model's dtype)."""
        x, y = batch
        loss: Tensor = (model(x) - y).square().mean()
        return loss

    # Results -------------------------------------------------------------------------------------

    def note(self, name: str, value: object) -> None:
        """Record a value that must be the same on all ranks and in the plain process."""
        self.facts[name] = plain(value)

    def drew(self, name: str, value: Tensor) -> None:
        """Record the numbers that each rank with samples must draw separately."""
        self.draws[name] = plain(value)

    def note_state(self, **things: nn.Module | Optimizer) -> None:
        """Record all tensors of ``state_dict()``, of any shape. All ranks call it."""
        for name, thing in things.items():
            for key, tensor in tensors(thing.state_dict()):
                self.note(f"{name}.{key}", tensor)

    def note_gradients(self, **models: nn.Module) -> None:
        """Record the gradients, None where there is none. All ranks call it."""
        if self.hides_gradients:
            return
        for name, model in models.items():
            for key, parameter in model.named_parameters():
                self.note(f"{GRADIENT} {name}.{key}", self._gradient(parameter))

    def _gradient(self, parameter: Tensor) -> Any:
        """Return the gradient, from another rank if a strategy stores it on only some ranks."""
        mine = plain(parameter.grad)
        if self.session is None or not self._declares("gradients_in_parts"):
            return mine
        reported = self.session.all_gather_object(mine)
        return next((one for one in [mine, *reported] if one is not None), None)

    def note_movement(self, before: dict[str, Tensor], model: nn.Module) -> None:
        """Record how far the parameters, of any shape, have moved. All ranks call it."""
        for key, tensor in model.state_dict().items():
            self.note(f"movement of {key}", tensor - before[key])

    def rounds_to(self, dtype: torch.dtype) -> None:
        """Use the tolerance for movements of parameters in a loop that computes in ``dtype``."""
        self.bound = of_movement(rounding.unit(dtype))


def tensors(state: object, prefix: str = "") -> Iterable[tuple[str, Tensor]]:
    """Yield all tensors of a nested state, of any shape, with the names that lead there."""
    if isinstance(state, Tensor):
        yield prefix, state
    elif isinstance(state, dict | list | tuple):
        pairs = state.items() if isinstance(state, dict) else enumerate(state)
        for key, value in pairs:
            yield from tensors(value, f"{prefix}.{key}".removeprefix("."))


def plain(value: object) -> Any:
    """Return a value that JSON can represent: for a tensor, its numbers."""
    return value.tolist() if isinstance(value, Tensor) else value
