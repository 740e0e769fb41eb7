"""The averages of one optimizer's parameters, computed by torch.optim.swa_utils."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import UsageError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


State = dict[str, Any]
Update = Callable[[list[Tensor], list[Tensor], int], None]
"""A function that ``get_ema_multi_avg_fn`` or ``get_swa_multi_avg_fn`` of torch returns."""


class Averages:
    """An average of each parameter that the optimizer holds, while the models exist.

    Args:
        update: adds values to averages.
        with_buffers: average the models' buffers as well, except integers, such as counts.
    """

    def __init__(self, update: Update, with_buffers: bool) -> None:
        self._update = update
        self._with_buffers = with_buffers
        self._parameters: list[int] = []
        self._entries: list[AveragedTensor] = []
        self._groups: list[list[AveragedTensor]] = []
        self._held: dict[int, set[int]] = {}
        self._train_mode: list[bool] = []
        self._models: list[weakref.ref[Module]] = []

    @property
    def models(self) -> list[Module]:
        """The existing models that own the parameters."""
        return [model for model in (one() for one in self._models) if model is not None]

    # Train ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def add(self, optimizer: Optimizer) -> None:
        """Add the current values to the averages, after a step of the optimizer."""
        self._follow(optimizer)
        self._train_mode = [model.training for model in self.models]
        for group in self._groups:
            count = group[0].count
            if count:
                averages, tensors = zip(*(entry.here for entry in group), strict=True)
                self._update(list(averages), list(tensors), count)
            for entry in group:
                entry.begin()
                entry.count += 1

    def _follow(self, optimizer: Optimizer) -> None:
        """Update the list of tensors if the optimizer's parameters have changed."""
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        if self._parameters == [id(one) for one in parameters]:
            return
        self._parameters = [id(one) for one in parameters]
        models = objects.models_of(parameters)
        self._models = [weakref.ref(model) for model in models]
        self._held = {id(model): _tensors(model) for model in models}
        buffers = [
            one
            for model in models
            for one in model.buffers()
            if one.is_floating_point() or one.is_complex()
        ]
        known = {id(entry.tensor): entry for entry in self._entries}
        tensors = [*parameters, *(buffers if self._with_buffers else ())]
        self._entries = [known.get(id(one)) or AveragedTensor(one) for one in tensors]
        self._group()

    def _group(self) -> None:
        """Group the tensors that one call of torch can average: by device, dtype and count."""
        self._groups = [
            list(group) for _, group in groupby(sorted(self._entries, key=_kind), key=_kind)
        ]

    # Evaluate ------------------------------------------------------------------------------------

    @property
    def are_in(self) -> bool:
        """Whether a parameter currently holds its average."""
        return any(entry.training is not None for entry in self._entries)

    @property
    def count(self) -> int:
        """The number of values in the averages, the largest if the averages differ."""
        return max((entry.count for entry in self._entries), default=0)

    @torch.no_grad()
    def swap_in(self, model: Module | None = None) -> None:
        """Replace parameters by their averages: all of them, or those of models inside ``model``.

        Models inside ``model`` that were in eval mode when the last value was added keep their
        weights: they train in eval mode, so the mode does not mean evaluation.
        """
        modes = zip(self._models, self._train_mode, strict=True)
        in_train_mode = [one() for one, trains in modes if trains]
        for entry in self._of(model, [one for one in in_train_mode if one is not None]):
            entry.swap_in()

    @torch.no_grad()
    def swap_out(self, model: Module | None = None) -> None:
        """Restore the training values of all parameters, or those of models inside ``model``."""
        for entry in self._of(model, self.models):
            entry.swap_out()

    def _of(self, model: Module | None, models: list[Module]) -> Iterator[AveragedTensor]:
        """Yield all entries, or those of the given models that are inside ``model``."""
        if model is None:
            yield from self._entries
            return
        inside = {id(part) for part in model.modules()}
        held: set[int] = set()
        held.update(*(self._held[id(one)] for one in models if _owners(one) <= inside))
        yield from (entry for entry in self._entries if id(entry.tensor) in held)

    # Checkpoints ---------------------------------------------------------------------------------

    def state(self, keeps: bool, gather: Callable[[Tensor, State], State]) -> State:
        """Return the state, without entries unless ``keeps`` is True. All ranks call it.

        ``gather`` returns a tensor's state from a rank that has its values.
        """
        states = (gather(entry.tensor, entry.state()) for entry in self._entries)
        return {
            "train_mode": self._train_mode,
            "entries": [state for state in states if keeps],
        }

    @torch.no_grad()
    def load(self, optimizer: Optimizer, state: State) -> None:
        """Load a state, with whole tensors on all ranks, or without any before the first value.

        All ranks call it. Raises UsageError if a shape differs.
        """
        self._train_mode = state["train_mode"]
        entries = iter(state["entries"])
        first = next(entries, None)
        if first is None:
            return
        self._follow(optimizer)
        for entry, mine in zip(self._entries, chain([first], entries), strict=True):
            entry.load(mine)
        self._group()


def _kind(entry: AveragedTensor) -> tuple[str, str, int]:
    return str(entry.tensor.device), str(entry.tensor.dtype), entry.count


def _tensors(model: Module) -> set[int]:
    return {id(one) for one in (*model.parameters(), *model.buffers())}


def _owners(model: Module) -> set[int]:
    """Return the ids of the modules that hold parameters, the same for a compiled model."""
    return {id(part) for part in model.modules() if any(True for _ in part.parameters(False))}


class AveragedTensor:
    """A parameter or buffer of a model, and its average.

    ``count`` is the number of values in the average. ``training`` is the training value while the
    tensor holds its average, and None otherwise. Under fsdp, tensors are this rank's shards.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.average = torch.empty_like(tensor, requires_grad=False)
        self.training: Tensor | None = None
        self.count = 0

    def begin(self) -> None:
        """Copy the first value into the average."""
        if not self.count:
            local(self.average).copy_(local(self.tensor))

    @property
    def here(self) -> tuple[Tensor, Tensor]:
        """This rank's parts of the average and of the value."""
        return local(self.average), local(self.tensor)

    def swap_in(self) -> None:
        """Replace the tensor's values by the average, if there is one, and if this is not done."""
        if self.count and self.training is None:
            average, tensor = self.here
            self.training = tensor.clone()
            tensor.copy_(average)

    def swap_out(self) -> None:
        """Restore the training value, bit for bit."""
        if self.training is not None:
            local(self.tensor).copy_(self.training)
            self.training = None

    # Checkpoints ---------------------------------------------------------------------------------

    def state(self) -> State:
        """Return the state, with whole tensors. All ranks call it."""
        training = None if self.training is None else part_like(self.tensor, self.training)
        return {
            "count": self.count,
            "average": whole(self.average),
            "training": None if training is None else whole(training),
        }

    def load(self, state: State) -> None:
        """Load this rank's part of a state with whole tensors.

        Raises UsageError if the shape differs.
        """
        average, training, count = state["average"], state["training"], state["count"]
        assert isinstance(average, Tensor) and isinstance(count, int)
        if average.shape != self.tensor.shape:
            raise UsageError(
                f"the checkpoint's average has the shape {tuple(average.shape)}, and the tensor of"
                f" this run {tuple(self.tensor.shape)}: resume with the same models"
            )
        local(self.average).copy_(self._here(average))
        self.training = None
        if isinstance(training, Tensor):
            self.training = self._here(training).clone()
        self.count = count

    def _here(self, value: Tensor) -> Tensor:
        """Return this rank's part of a whole tensor."""
        return local(part_like(self.tensor, value, from_whole=True))


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, in the same memory; all of it if it is not sharded."""
    found = tensor.detach()
    return cast("DTensor", found).to_local() if is_part(found) else found


def whole(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor, whole if the tensor is sharded. All ranks call it."""
    found = tensor.detach()
    return cast("DTensor", found).full_tensor() if is_part(found) else found.clone()


def is_part(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, of which other ranks have the rest."""
    return hasattr(tensor, "full_tensor")


def part_like(tensor: Tensor, value: Tensor, from_whole: bool = False) -> Tensor:
    """Return a value sharded like ``tensor``.

    ``value`` has the shape of the whole tensor with ``from_whole``, and else of this rank's part.
    """
    here = value.to(tensor.device, tensor.dtype) if from_whole else value
    if not is_part(tensor):
        return here
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(tensor, DTensor)
    mesh, places = tensor.device_mesh, tensor.placements
    if from_whole:
        return distribute_tensor(here, mesh, places, src_data_rank=None)
    shape, stride = tensor.size(), tensor.stride()
    return DTensor.from_local(here, mesh, places, run_check=False, shape=shape, stride=stride)
