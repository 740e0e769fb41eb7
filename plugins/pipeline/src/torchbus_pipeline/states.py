"""Makes states whole on every rank, although each rank holds only its stages."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from operator import methodcaller
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Context, Unsupported, hookimpl
from torchbus.tree import map_tensors

from torchbus_launch.rank_position import END
from torchbus_pipeline import remote_parameters
from torchbus_pipeline._compat import parameters
from torchbus_pipeline.cut import Cut, first_mark, mark_of
from torchbus_pipeline.divergence import CheckedBarrier, PipelineRanks
from torchbus_pipeline.models import CutModels
from torchbus_pipeline.remote_parameters import Elsewhere
from torchbus_strategy import sharding
from torchbus_strategy.compat import buffers


class End:
    """Makes models and optimizers whole at the end of the block, unless the loop has raised."""

    def __init__(
        self,
        session: Context,
        barrier: CheckedBarrier,
        models: CutModels,
        modules: WholeModules,
        optimizers: WholeOptimizers,
    ) -> None:
        self._session, self._barrier, self._models = session, barrier, models
        self._modules, self._optimizers = modules, optimizers

    @hookimpl(trylast=True)
    def session_end(self, error: BaseException | None) -> None:
        if error is not None:
            return refuse_gradient(error, self._models)
        self._barrier.sync("the end of the block")
        assert self._session.job is not None
        self._session.job.wait_in(END)
        self._optimizers.make_whole()
        self._modules.make_whole()


def refuse_gradient(error: BaseException, models: CutModels) -> None:
    """Raise Unsupported for an error of a loop that has used the ``grad`` of another rank's layer.

    Such a ``grad`` is None, because another rank has it.
    """
    read_from_none = isinstance(error, AttributeError) and error.obj is None and any(models)
    if read_from_none and hasattr(Tensor, str(error.name)):  # type: ignore[attr-defined]
        raise Unsupported(
            f"p.grad is None (it has no {error.name!r}): under strategy='pipeline' a rank has the"  # type: ignore[attr-defined]
            " gradients of its own layers only. Use torch.nn.utils.clip_grad_norm_, whose result"
            " is the norm over all layers, or strategy='ddp'"
        ) from error


class CopiedHook:
    """A hook that copies of a model have, too. It can't be pickled."""

    def __deepcopy__(self, memo: object) -> CopiedHook:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        remote_parameters.refuse_pickling("each rank has only some layers")


class Gather(CopiedHook):
    """A hook by which a layer's owner broadcasts its values. All ranks must call it."""

    def __init__(self, session: Context, team: PipelineRanks) -> None:
        self._session, self._team = session, team

    def __call__(self, module: Module, state: dict[str, object], prefix: str, _: object) -> None:
        mark = mark_of(module)
        if mark is None or not self._session.is_inside:
            return
        for name in [*parameters(module), *buffers(module)]:
            held = state.get(prefix + name)
            if isinstance(held, Tensor):
                state[prefix + name] = _from_place(self._team, held, mark.place)


class SyncHook(CopiedHook):
    """A hook that compares the ranks' positions before they gather a model."""

    def __init__(self, session: Context, barrier: CheckedBarrier) -> None:
        self._session, self._barrier = session, barrier

    def __call__(self, module: Module, prefix: str, keep_vars: bool) -> None:
        if not prefix and self._session.is_inside:
            self._barrier.sync_in_pipeline(f"the state_dict of {type(module).__name__}")


class WholeModules:
    """Makes the states of models and their copies whole, and at the end the models.

    So checkpoints have whole states, which any number of ranks can load.
    """

    def __init__(self, session: Context, team: PipelineRanks, barrier: CheckedBarrier) -> None:
        self._session, self._team = session, team
        self._gather, self._sync = Gather(session, team), SyncHook(session, barrier)

    def add(self, cut: Cut) -> None:
        """Make a model's ``state_dict()`` whole."""
        model, stack = cut.model(), self._session.on_close
        for module in model.modules() if model is not None else ():
            stack.callback(module.register_state_dict_pre_hook(self._sync).remove)
            stack.callback(module.register_state_dict_post_hook(self._gather).remove)

    def make_whole(self) -> None:
        """Gather all values of models and their copies on all ranks. All ranks must call this."""
        found = [(first_mark(model), model) for model in objects.alive(Module)]
        marked = [(number, model) for number, model in found if number is not None]
        roots = objects.outermost(model for _, model in marked)
        number_of = {id(model): number for number, model in marked}
        for model in sorted(roots, key=lambda one: number_of[id(one)]):
            for module in model.modules():
                mark = mark_of(module)
                if mark is not None:
                    self._fill(module, mark.place)

    def _fill(self, module: Module, place: int) -> None:
        for held in [*parameters(module).values(), *buffers(module).values()]:
            if isinstance(held, Elsewhere):
                remote_parameters.fill(held)
            if held is not None:
                held.data = self._team.spread(held.data.contiguous(), place)


def _from_place(team: PipelineRanks, held: Tensor, place: int) -> Tensor:
    """Broadcast the values of one place. Other places get a new tensor of this shape and dtype."""
    if team.place == place:
        if held.numel():
            team.spread(held.detach().contiguous(), place)
        return held
    made = torch.empty(held.shape, dtype=held.dtype, device=held.device)
    whole = team.spread(made, place) if held.numel() else made
    return nn.Parameter(whole, held.requires_grad) if isinstance(held, nn.Parameter) else whole


class WholeNorm:
    """The gradient norm over the pipeline; parameters that every rank has count once."""

    def __init__(self, session: Context, models: CutModels, team: PipelineRanks) -> None:
        self._session, self._models, self._team = session, models, team

    @hookimpl
    @torch.no_grad()
    def clip_gradients(
        self,
        parameters: list[Tensor],
        max_norm: float,
        norm_type: float,
        run: Callable[[float], Tensor],
    ) -> Tensor | None:
        inside = self._models.inside()
        if not any(id(one) in inside for one in parameters):
            return None
        here = [one.grad for one in parameters if one.grad is not None]
        counted = [
            one.grad
            for one in parameters
            if one.grad is not None and (id(one) in inside or self._team.place == 0)
        ]
        norm = self._combined(counted, float(norm_type), run)
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in here:
            gradient.mul_(factor.to(gradient.device, gradient.dtype))
        return norm

    def _combined(
        self, gradients: list[Tensor], kind: float, run: Callable[[float], Tensor]
    ) -> Tensor:
        """Return the norm over all ranks of the pipeline. All these ranks must call this."""
        norms = [torch.linalg.vector_norm(one, kind) for one in gradients]
        device = self._session.device
        mine = torch.zeros((), dtype=torch.float64, device=device)
        if norms:
            mine = torch.linalg.vector_norm(torch.stack([one.to(mine) for one in norms]), kind)
        if not torch.isfinite(mine):
            run(math.inf)  # raises for error_if_nonfinite=True
        if math.isinf(kind):
            dist.all_reduce(mine, dist.ReduceOp.MAX, group=self._team.group)
        else:
            mine = mine**kind
            dist.all_reduce(mine, group=self._team.group)
            mine = mine ** (1.0 / kind)
        return mine.to(self._dtype())

    def _dtype(self) -> torch.dtype:
        """Return the dtype of the norm, which is the same on ranks with and without gradients."""
        model = next((model for cut in self._models if (model := cut.model()) is not None), None)
        return torch.get_default_dtype() if model is None else next(model.parameters()).dtype


class WholeOptimizers:
    """Gathers the optimizer states of all places. All ranks must call its methods."""

    def __init__(self, session: Context, barrier: CheckedBarrier) -> None:
        self._session, self._barrier = session, barrier
        self._known: list[weakref.ref[Optimizer]] = []

    @hookimpl(trylast=True)
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if optimizer is None or not self._session.captures(optimizer):
            return
        if not any(reference() is optimizer for reference in self._known):
            self._known.append(weakref.ref(optimizer))
            stack = self._session.on_close
            stack.callback(optimizer.register_state_dict_post_hook(self._gather).remove)
            stack.callback(optimizer.register_load_state_dict_post_hook(_keep_local).remove)
        _keep_local(optimizer)

    def keep_local(self, cut: object) -> None:
        """Drop states that belong to other ranks after a model was cut."""
        for optimizer in [found for known in self._known if (found := known()) is not None]:
            _keep_local(optimizer)

    def _gather(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        if not self._session.is_inside:
            return state_dict
        self._barrier.sync_in_pipeline(f"the state_dict of {type(optimizer).__name__}")
        return {**state_dict, "state": self._whole(state_dict["state"])}

    def _whole(self, state: dict[Any, Any]) -> dict[Any, Any]:
        whole = dict(state)
        for part in self._barrier.gather_in_pipeline(map_tensors(state, Tensor.cpu)):
            whole = {**part, **whole}
        return dict(sorted(whole.items()))

    @hookimpl(optionalhook=True)
    def gather_average(self, tensor: Tensor, state: dict[str, Any]) -> dict[str, Any]:
        mine = None if isinstance(tensor, Elsewhere) else map_tensors(state, Tensor.cpu)
        parts = self._barrier.gather_in_pipeline(mine)
        return next(part for part in parts if part is not None)

    @hookimpl(optionalhook=True)
    def whole_gradients(self, optimizer: Optimizer) -> list[Tensor | None]:
        """Return the gradients of all layers, in the parameters' shapes and dtypes."""
        gradients = dict(enumerate(one.grad for one in _parameters(optimizer)))
        whole = self._whole({index: one for index, one in gradients.items() if one is not None})
        return [whole.get(index) for index in gradients]

    @hookimpl(optionalhook=True)
    def put_gradients(self, optimizer: Optimizer, gradients: list[Tensor | None]) -> bool:
        for one, gradient in zip(_parameters(optimizer), gradients, strict=False):
            if gradient is not None and not isinstance(one, Elsewhere):
                one.grad = gradient.to(one.device, one.dtype, copy=True)
        return True

    def make_whole(self) -> None:
        """Gather all states on all ranks. Must be called before the parameters are whole again."""
        for optimizer in sharding.alive_on_all(self._session, self._known):
            mine = {
                index: optimizer.state[one]
                for index, one in enumerate(_parameters(optimizer))
                if optimizer.state.get(one)
            }
            whole = self._whole(mine)
            for index, one in enumerate(_parameters(optimizer)):
                if index in whole and index not in mine:
                    to_device = methodcaller("to", one.device)
                    optimizer.state[one] = map_tensors(whole[index], to_device)


def _keep_local(optimizer: Optimizer) -> None:
    """Drop the state of other ranks' parameters, which was loaded or is from before the block."""
    for parameter in _parameters(optimizer):
        if isinstance(parameter, Elsewhere):
            optimizer.state.pop(parameter, None)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
