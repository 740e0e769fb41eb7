"""The averages of what one optimizer trains, in torch's own arithmetic."""

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
"""As ``get_ema_multi_avg_fn`` and ``get_swa_multi_avg_fn`` of torch.optim.swa_utils return it."""


class Averages:
    """An average for each parameter that the optimizer holds, as long as their models live.

    Args:
        update: adds values to averages.
        with_buffers: average the buffers of its models as well, except integers: a count has no
            mean.
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
        """The models that own the parameters."""
        return [model for model in (one() for one in self._models) if model is not None]

    # Train ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def add(self, optimizer: Optimizer) -> None:
        """Add the values that a step of the optimizer has made."""
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
        """Update the list of tensors if the optimizer has got others."""
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
        """Put together what one call of torch can average."""
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
        """How many values are in the averages: the largest number."""
        return max((entry.count for entry in self._entries), default=0)

    @torch.no_grad()
    def swap_in(self, model: Module | None = None) -> None:
        """Put the averages in place: all of them, or those of models inside this one.

        Of models inside, those that were in eval mode at the last step are left out: they train in
        eval mode, so it does not show evaluation.
        """
        modes = zip(self._models, self._train_mode, strict=True)
        in_train_mode = [one() for one, trains in modes if trains]
        for entry in self._of(model, [one for one in in_train_mode if one is not None]):
            entry.swap_in()

    @torch.no_grad()
    def swap_out(self, model: Module | None = None) -> None:
        """Restore the training values of all parameters, or of models inside this one."""
        for entry in self._of(model, self.models):
            entry.swap_out()

    def _of(self, model: Module | None, models: list[Module]) -> Iterator[AveragedTensor]:
        """All entries, or those of these models, as far as they are inside ``model``."""
        if model is None:
            yield from self._entries
            return
        inside = {id(part) for part in model.modules()}
        held: set[int] = set()
        held.update(*(self._held[id(one)] for one in models if _owners(one) <= inside))
        yield from (entry for entry in self._entries if id(entry.tensor) in held)

    # Checkpoints ---------------------------------------------------------------------------------

    def state(self, keeps: bool, gather: Callable[[Tensor, State], State]) -> State:
        """The state, with no tensors on ranks that don't keep it. All ranks call it.

        ``gather``: returns a tensor's state from a rank that has its values.
        """
        states = (gather(entry.tensor, entry.state()) for entry in self._entries)
        return {
            "train_mode": self._train_mode,
            "entries": [state for state in states if keeps],
        }

    @torch.no_grad()
    def load(self, optimizer: Optimizer, state: State) -> None:
        """Take up a state, which has the tensors on all ranks: none before the first value."""
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
    """Return the modules that own parameters, the same for a compiled model."""
    return {id(part) for part in model.modules() if any(True for _ in part.parameters(False))}


class AveragedTensor:
    """A parameter or buffer of a model, and its average.

    ``count`` is the number of values in the average. ``training`` is the training value while the
    parameter holds its average, and None otherwise. Under fsdp, tensors are this rank's shards.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.average = torch.empty_like(tensor, requires_grad=False)
        self.training: Tensor | None = None
        self.count = 0

    def begin(self) -> None:
        """Let the first value be the average."""
        if not self.count:
            local(self.average).copy_(local(self.tensor))

    @property
    def here(self) -> tuple[Tensor, Tensor]:
        """The average and the value, as this rank holds them."""
        return local(self.average), local(self.tensor)

    def swap_in(self) -> None:
        """Put the average in the tensor's place, unless there is none, or it is there."""
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
        """The state, with whole tensors. All ranks call it."""
        training = None if self.training is None else part_like(self.tensor, self.training)
        return {
            "count": self.count,
            "average": whole(self.average),
            "training": None if training is None else whole(training),
        }

    def load(self, state: State) -> None:
        """Take up a state, of which this rank keeps its part."""
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
        """This rank's part of a whole tensor."""
        return local(part_like(self.tensor, value, from_whole=True))


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, in the same memory. A tensor that is not sharded is its own."""
    found = tensor.detach()
    return cast("DTensor", found).to_local() if is_part(found) else found


def whole(tensor: Tensor) -> Tensor:
    """Return a copy of the whole of a sharded tensor. All ranks call it."""
    found = tensor.detach()
    return cast("DTensor", found).full_tensor() if is_part(found) else found.clone()


def is_part(tensor: Tensor) -> bool:
    """Whether other ranks have the rest of it. It is a DTensor, which torch has moved once."""
    return hasattr(tensor, "full_tensor")


def part_like(tensor: Tensor, value: Tensor, from_whole: bool = False) -> Tensor:
    """A value, sharded as the tensor is. ``from_whole``: it is the whole, else this rank's part."""
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
