"""The trained parameters: found in optimizers, with rank 0's values on all ranks."""

from __future__ import annotations

import itertools
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor
from torch.nn import Module, SyncBatchNorm, functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torchbus import objects
from torchbus.compat.torch_names import children
from torchbus.plugin import Context, hookimpl

from torchbus_strategy.checks import hyperparameters
from torchbus_strategy.checks.divergence import sums_of
from torchbus_strategy.checks.first_steps import refuse_renormalised
from torchbus_strategy.checks.hyperparameters import Settings
from torchbus_strategy.collectives import extremes
from torchbus_strategy.compat import BATCH_NORM, requires_grad
from torchbus_strategy.graph import hold
from torchbus_strategy.parameters.per_rank import PerRankTensors
from torchbus_strategy.parameters.rank0_values import (
    Buffers,
    copy_from_rank0,
    gather_summaries,
    refuse_empty,
)
from torchbus_strategy.user_code import warn_of_gradients


def convert(model: Module) -> None:
    """Replace the model's BatchNorm layers in place.

    Parameters, buffers and state_dict keys stay the same.
    """
    for module in list(model.modules()):
        for name, child in children(module).items():
            if isinstance(child, BATCH_NORM) and not isinstance(child, SyncBatchNorm):
                children(module)[name] = SyncBatchNorm.convert_sync_batchnorm(child)


def count_only_samples(session: Context) -> None:
    """Exclude the samples that a rank without samples repeats from BatchNorm's statistics."""
    session.batches.follow()

    def make(forward: Callable[[SyncBatchNorm, Tensor], Tensor]) -> object:
        def synced(module: SyncBatchNorm, x: Tensor) -> Tensor:
            if not module.training or not _repeats(session):
                return forward(module, x)
            # the empty forward and its backward take part in the collectives of the other ranks
            return _by_itself(module, x) + forward(module, x[:0]).sum()

        return synced

    session.replace(SyncBatchNorm, "forward", make)


def _repeats(session: Context) -> bool:
    shares = [one.share for one in session.batches.at_hand if one.share is not None]
    return bool(shares) and all(share.weight == 0.0 for share in shares)


def _by_itself(module: SyncBatchNorm, x: Tensor) -> Tensor:
    """Normalise by the running statistics, if there are any. The result does not count."""
    if module.running_mean is None or module.running_var is None:
        return x
    return functional.batch_norm(
        x, module.running_mean, module.running_var, module.weight, module.bias, eps=module.eps
    )


UNLIKE = (
    "the loop has put other tensors into the groups of {} on each rank: all get rank 0's values,"
    " but an optimizer's state stays each rank's own. Add and remove the same ones on all ranks:"
    " make the statistics common by s.reduce(statistics), and draw from a generator with the same"
    " seed on all ranks"
)
MOST_PHASES = 16


class TrainedParameters:
    """Collects the parameters of optimizers and models.

    ``parameters`` are in the order in which they were found, the same on all ranks. ``changed`` is
    called when they have changed.
    """

    def __init__(self, session: Context, sync_batchnorm: bool, changed: Callable[[], None]) -> None:
        assert session.job is not None
        self._session = session
        self._job = session.job
        self._sync_batchnorm = sync_batchnorm
        self._changed = changed
        self._known: dict[int, Tensor] = {}
        self._adopted: set[int] = set()
        self._models: list[weakref.ref[Module]] = []
        self._others: list[weakref.ref[Module]] = []
        """Called modules that have buffers and no parameters, such as a loss with a center."""
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._next_number = itertools.count()
        self._has_warned = False
        self._watched: dict[weakref.ref[Optimizer], list[int]] = {}
        """The ids of each optimizer's parameters. Listing a weak dictionary would take 10 us."""
        self._additions = self._phases = 0
        self._holders: dict[int, set[int]] = {}
        self.parameters: list[Tensor] = []
        self.per_rank = PerRankTensors(session)
        if sync_batchnorm:
            count_only_samples(session)

    @property
    def has_optimizers(self) -> bool:
        """Whether any optimizer holds some of the parameters."""
        return bool(self._holders)

    @hookimpl(tryfirst=True)
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        """Add an optimizer's parameters, and all other parameters of the models that own them.

        The first forward of a model may depend on the rank, so it must not need a collective.
        """
        if optimizer is not None and not self._session.captures(optimizer):
            return
        new = [parameter for parameter in parameters if id(parameter) not in self._known]
        models = self.models(new) if new else []
        if not new:
            self._begin_phase(parameters)
        owned = [parameter for model in models for parameter in model.parameters()]
        if optimizer is not None:
            parameters = self._shared(optimizer, parameters, new, owned)
            new = [parameter for parameter in new if parameter not in self.per_rank]
            self._hold(optimizer, parameters)
        else:
            self._adopted.update(map(id, parameters))
        hold(new)
        if new:
            refuse_empty(new, models)
            what = (
                f"the parameters of {type(optimizer).__name__}" if optimizer else "adopted tensors"
            )
            self._add(
                [*new, *owned],
                models,
                what,
                hyperparameters.of_optimizer(optimizer) if optimizer else {},
            )

    def _shared(
        self,
        optimizer: Optimizer,
        parameters: list[Tensor],
        new: list[Tensor],
        owned: Sequence[Tensor],
    ) -> list[Tensor]:
        """Return the optimizer's parameters, except those that belong to this rank's samples."""
        inside = {id(parameter) for parameter in owned}
        mine = self.per_rank.find(
            [parameter for parameter in new if id(parameter) not in inside],
            type(optimizer).__name__,
        )
        if mine:
            self._session.bus.hook.own_tensors(optimizer=optimizer, tensors=mine)
        return [parameter for parameter in parameters if parameter not in self.per_rank]

    def _hold(self, optimizer: Optimizer, parameters: list[Tensor]) -> None:
        if parameters and optimizer not in self._numbers:
            self._numbers[optimizer] = next(self._next_number)
            self._watched[weakref.ref(optimizer)] = []
        for parameter in parameters:
            self._holders.setdefault(id(parameter), set()).add(self._numbers[optimizer])

    @hookimpl
    def model_found(self, model: Module) -> None:
        # a tool that counts flops may call a model with parameters on the meta device
        counted = [parameter for parameter in model.parameters() if not parameter.is_meta]
        if not counted:
            self._add_other(model)
            return
        known = all(id(parameter) in self._known for parameter in counted)
        if (
            known
            or not self._session.captures(model)
            or is_distributed(model)
            or (self._job.backwards and not _trains(model))
        ):
            return
        self._add(list(model.parameters()), [model], type(model).__name__, {})

    def _begin_phase(self, parameters: list[Tensor]) -> None:
        """Look for new models around known parameters, of which another optimizer is made.

        The search takes milliseconds, so it ends if the loop makes an optimizer in each step.
        """
        self._phases += 1
        for model in self.models(parameters) if self._phases <= MOST_PHASES else ():
            self._add_buffers_of(model)

    def _add_buffers_of(self, model: Module) -> None:
        is_new = not any(model is known for known in self._alive(self._models))
        if is_new and self._session.captures(model) and any(True for _ in model.buffers()):
            self._models.append(weakref.ref(model))
            self._changed()

    def _add_other(self, model: Module) -> None:
        """Give a module without parameters rank 0's buffers from the next backward on."""
        is_new = not any(other() is model for other in self._others)
        if is_new and self._session.captures(model) and any(True for _ in model.buffers()):
            self._others.append(weakref.ref(model))
            self._changed()

    def _add(
        self, parameters: list[Tensor], models: list[Module], what: str, made_with: Settings
    ) -> None:
        """Give new parameters and buffers rank 0's values. All ranks call it."""
        refuse_renormalised(self._session, models)
        self._forget_dead(what)
        self._additions += 1
        new = {id(tensor): tensor for tensor in parameters if id(tensor) not in self._known}
        buffers = {id(buffer): buffer for model in models for buffer in model.buffers()}
        for model in models:
            made_with |= hyperparameters.of_model(model)
        copy_from_rank0([*new.values(), *buffers.values()], what, made_with)
        if self._sync_batchnorm:
            for model in models:
                convert(model)
        self._known |= new
        self._models += [weakref.ref(model) for model in models]
        self.parameters = list(self._known.values())
        self._changed()

    def look_for_replaced(self) -> None:
        """Find parameters that the loop has put into an optimizer's groups by hand, as one does to
        densify or prune points. All ranks call it, before each backward.
        """
        for reference, known in tuple(self._watched.items()):
            optimizer = reference()
            if optimizer is None:
                del self._watched[reference]
                continue
            groups = optimizer.param_groups
            one = groups[0]["params"] if len(groups) == 1 else None
            held = list(
                map(id, chain(*[group["params"] for group in groups]) if one is None else one)
            )
            if held == known:
                continue
            self._watched[reference] = held
            new = [one for one in _parameters_of(optimizer) if self._is_new(one)]
            if new:
                self._compare(new, type(optimizer).__name__)
                self._session.bus.hook.parameters_added(optimizer=optimizer, parameters=new)

    def _compare(self, new: list[Tensor], what: str) -> None:
        """Warn if the ranks add different parameters. All ranks call it."""
        reported = gather_summaries(f"parameters in the groups of {what}", [sums_of(new)])
        unlike = any(theirs != reported[0][1] for _, theirs in reported)
        if unlike and self._session.is_main and not self._has_warned:
            self._has_warned = True
            warn_of_gradients(UNLIKE.format(what))

    def _is_new(self, parameter: Tensor) -> bool:
        return not self.knows(parameter)

    def look_for_dead(self) -> None:
        """Forget freed parameters after the first backward with new ones. All ranks call it.

        ``model = make()`` frees the earlier model only when the new one exists.
        """
        if self._additions > 1 and self._forget_dead("parameters that are gone"):
            self.parameters = list(self._known.values())
            self._changed()

    def _forget_dead(self, what: str) -> bool:
        """Forget the parameters whose model and optimizer are gone on all ranks.

        An earlier cross-validation fold leaves some, for example. Returns whether there were any.
        """
        alive: list[Module | Optimizer] = [*self._alive(self._models), *self._numbers]
        held = {
            id(parameter) for thing in alive for parameter in _parameters_of(thing)
        } | self._adopted
        dead = [key not in held for key in self._known]
        reported = gather_summaries(what, [zlib.crc32(bytes(dead))])
        if any(theirs != reported[0][1] for _, theirs in reported):
            dead = [bool(least) for least, _ in extremes(dead, self._session.world_size)]
        for key in [key for key, is_dead in zip(self._known, dead, strict=True) if is_dead]:
            del self._known[key]
            self._holders.pop(key, None)
        return any(dead)

    @staticmethod
    def _alive(references: Iterable[weakref.ref[Module]]) -> list[Module]:
        return [model for model in (reference() for reference in references) if model is not None]

    @hookimpl
    def mode_changed(self) -> None:
        """Let all ranks draw the same random numbers while every trained model is in eval mode."""
        models = self._alive(self._models)
        if models:
            self._session.random.use(
                "own" if any(model.training for model in models) else "evaluation"
            )

    # For the parts that synchronise them ---------------------------------------------------------

    def knows(self, tensor: Tensor) -> bool:
        """Whether a tensor, of any shape, is a parameter or belongs to this rank's samples."""
        return id(tensor) in self._known or tensor in self.per_rank

    def requiring_gradients(self) -> list[Tensor]:
        """The parameters that are not frozen now."""
        return list(filter(requires_grad, self.parameters))

    def any_requires_gradients(self) -> bool:
        """Whether any parameter requires a gradient now."""
        return any(map(requires_grad, self.parameters))

    def holders(self, parameters: Sequence[Tensor]) -> list[tuple[int, ...]]:
        """Return the numbers of the optimizers that hold each parameter."""
        return [tuple(sorted(self._holders.get(id(parameter), ()))) for parameter in parameters]

    def optimizer_settings(self) -> Settings:
        """Return the hyperparameters of the living optimizers, with the optimizers' numbers."""
        return hyperparameters.of_numbered(
            sorted(
                [(number, optimizer) for optimizer, number in self._numbers.items()],
                key=lambda pair: pair[0],
            )
        )

    def buffers(self, models: Sequence[Module]) -> Buffers:
        """Return the buffers of these models, and of called modules without parameters."""
        return Buffers(models, self._alive(self._others))

    def known_models(self) -> list[Module]:
        """Return the models that were found, and called modules without parameters."""
        return [*self._alive(self._models), *self._alive(self._others)]

    def models(self, parameters: Sequence[Tensor]) -> list[Module]:
        """Return the models that own the parameters, except those that are already distributed."""
        return [model for model in objects.models_of(parameters) if not is_distributed(model)]

    # Explain -------------------------------------------------------------------------------------

    @hookimpl
    def describe(self, thing: object) -> str | None:
        if not isinstance(thing, Module):
            return None
        if is_distributed(thing):
            return "already distributed by the script: left alone"
        known = sum(id(parameter) in self._known for parameter in thing.parameters())
        total = sum(1 for _ in thing.parameters())
        if not known:
            return "not synchronised: not called yet, and in no optimizer"
        if not self._job.backwards:
            return "to be synchronised in backward: none has run yet"
        return "synchronised in backward" + (
            f" ({known} of {total} tensors, by their optimizer)" if known < total else ""
        )

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"notes": [self.per_rank.note]} if self.per_rank.note else {}


def is_distributed(model: Module) -> bool:
    """Whether the script has wrapped a model in DDP or FSDP."""
    return isinstance(model, DistributedDataParallel) or type(model).__name__.startswith(
        ("FSDP", "FullyShardedDataParallel")
    )


def _parameters_of(thing: Module | Optimizer) -> list[Tensor]:
    if isinstance(thing, Module):
        return list(thing.parameters())
    return [parameter for group in thing.param_groups for parameter in group["params"]]


def _trains(model: Module) -> bool:
    """Whether this call may be part of training.

    A teacher, or a metric's network, that appears in mid-run need not be the same on all ranks.
    """
    return (
        torch.is_grad_enabled()
        and model.training
        and any(parameter.requires_grad for parameter in model.parameters())
    )
