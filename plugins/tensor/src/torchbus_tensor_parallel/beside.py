"""Tensor parallel layers together with fsdp, which shards the remaining dimensions."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torchbus.plugin import BackwardCall, Context, Plugin, UsageError, expect, hookimpl

from torchbus_strategy import compat, sharding
from torchbus_strategy.groups import mesh_sizes
from torchbus_tensor_parallel import dtensor
from torchbus_tensor_parallel.checks import refuse_graphs
from torchbus_tensor_parallel.dtensor import (
    Mixing,
    compute_divided,
    divide_losses,
    refuse_divided_loss,
)
from torchbus_tensor_parallel.layers import DividedLayers, gathered_copy
from torchbus_tensor_parallel.plans import ModulePlan, PlanOption

Run = Callable[[float], Tensor]


class TensorLayers(Plugin):
    """Divides the layers of a plan over the ranks of ``tp=``, under ``strategy="fsdp"``.

    Args:
        plan: which modules are divided, and how, as for tp.
        sequence_parallel: as for tp.
        loss_parallel: as for tp.

    Raises:
        UsageError: the plan is of another type, or a style is unknown.
    """

    def __init__(
        self,
        *,
        plan: PlanOption = "auto",
        sequence_parallel: bool = False,
        loss_parallel: bool = False,
    ) -> None:
        expect("loss_parallel", loss_parallel, bool, "True or False")
        self._plan, self._loss_parallel = ModulePlan(plan, sequence_parallel), loss_parallel
        self._models: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()

    @hookimpl
    def session_start(self, session: Context) -> None:
        if "tp" not in dict(session.world.shape):
            raise UsageError(
                "plan=, sequence_parallel= or loss_parallel= without tp=: say how many ranks share"
                " a layer, such as tp=2 with strategy='ddp', 'fsdp' or 'tp'"
            )
        self._session, self._undo, self._mixing = session, ExitStack(), Mixing()
        session.on_close.callback(self._undo.close)
        if session.world_size > 1:
            compute_divided(session)
            session.replace(torch.autograd, "grad", refuse_graphs)
        if session.world_size > 1 and self._loss_parallel:
            divide_losses(session)

    @hookimpl(optionalhook=True)
    def divide_layers(self, model: Module, mesh: DeviceMesh) -> int:
        layers = DividedLayers(
            self._plan, mesh, self._undo, self._loss_parallel, gathered_copy, False
        )
        self._models[model] = layers.divide(model)
        self._mixing.around(model, self._undo)
        for one in dtensor.undivided(model):  # fsdp calls the hooks for the gathered parameter
            self._undo.callback(one.register_hook(dtensor.whole).remove)
        return self._models[model]

    @hookimpl
    def before_backward(self, call: BackwardCall) -> None:
        if self._session.job is not None and not self._session.job.backwards:
            self._plan.refuse_unused()
        if self._loss_parallel:
            refuse_divided_loss(call)
        self._mixing.begin()

    @hookimpl
    def after_backward(self, call: BackwardCall) -> None:
        self._mixing.end()

    @hookimpl
    def backward_failed(self, call: BackwardCall) -> None:
        self._mixing.end()

    @hookimpl(trylast=True)
    @torch.no_grad()
    def clip_gradients(
        self,
        parameters: list[Tensor],
        max_norm: float,
        norm_type: float,
        run: Run,
    ) -> Tensor | None:
        """Clip gradients by their norm over all meshes, and return that norm, of one element.

        ``run(max_norm)`` clips as torch does. Returns None without clipping if no parameter with a
        gradient is a DTensor, so that torch can do it. All ranks call it.
        """
        meshes = list(dict.fromkeys(_mesh(one) for one in parameters if one.grad is not None))
        if not any(meshes):
            return None
        if len(meshes) == 1:
            return _plain(run(max_norm))
        norms = [_norm_on(mesh, parameters, run) for mesh in meshes]
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for one in parameters:
            if one.grad is not None:
                mine = compat.local_part(one.grad)
                mine.mul_(factor.to(mine.device, mine.dtype))
        return total

    @hookimpl
    def describe(self, thing: object) -> str | None:
        count = self._models.get(thing, 0) if isinstance(thing, Module) else 0
        return (
            f"{count} layers divided over {mesh_sizes(self._session.world)['tp']} ranks"
            if count
            else None
        )

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"plan": self._plan.lines()}


def _mesh(parameter: Tensor) -> object:
    return parameter.device_mesh if isinstance(parameter, DTensor) else None


def _norm_on(mesh: object, parameters: Sequence[Tensor], run: Run) -> Tensor:
    with _hidden([one for one in parameters if _mesh(one) != mesh]):
        return _plain(run(math.inf))


def _plain(norm: Tensor) -> Tensor:
    plain: Tensor = sharding.whole(norm)
    return plain


@contextmanager
def _hidden(parameters: Sequence[Tensor]) -> Iterator[None]:
    gradients = [one.grad for one in parameters]
    for one in parameters:
        one.grad = None
    try:
        yield
    finally:
        for one, gradient in zip(parameters, gradients, strict=True):
            one.grad = gradient
