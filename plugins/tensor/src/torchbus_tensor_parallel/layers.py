"""Divides the layers of a model that a plan names, in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.nn import Module
from torchbus.plugin import map_tensors

from torchbus_tensor_parallel._compat import forget_distribution, hooks_after, hooks_before
from torchbus_tensor_parallel.checks import refuse_hooks, refuse_local_dropout, refuse_shared
from torchbus_tensor_parallel.plans.plan import Plan


class Layers:
    """Divides over ``mesh``, which has one dimension.

    ``undo`` removes what it puts into modules.
    """

    def __init__(self, plan: Plan, mesh: DeviceMesh, undo: ExitStack) -> None:
        self._plan, self._mesh, self._undo = plan, mesh, undo

    def divide(self, model: Module) -> int:
        """Returns how many layers were divided. All ranks call it, with equal parameters.

        Raises UsageError or Unsupported if the plan does not fit the model.
        """
        styles = self._plan.of(model, self._mesh.size())
        if not styles:
            return 0
        refuse_shared(model, styles)
        refuse_hooks(model, styles)
        refuse_local_dropout(model, styles)
        trained = {name: one.requires_grad for name, one in model.named_parameters()}
        self._apply(model, styles)
        for name, new in model.named_parameters():
            new.requires_grad_(trained[name])
        self._undo.callback(model.register_forward_hook(_whole_outputs).remove)
        return len(styles)

    def _apply(self, model: Module, styles: Mapping[str, ParallelStyle]) -> None:
        before = _hooks(model)
        for name, style in styles.items():
            parallelize_module(model.get_submodule(name), self._mesh, style)
        put = [
            (hooks, keys - old)
            for (hooks, keys), (_, old) in zip(_hooks(model), before, strict=True)
        ]
        self._undo.callback(_remove, put)
        for module in model.modules():
            self._undo.callback(forget_distribution, module)


Hooks = list[tuple[dict[int, object], set[int]]]


def _hooks(model: Module) -> Hooks:
    """Each module's tables of hooks around forward, with their keys now."""
    kinds: tuple[Callable[[Module], dict[int, object]], ...] = (hooks_before, hooks_after)
    return [(kind(module), set(kind(module))) for module in model.modules() for kind in kinds]


def _remove(put: Hooks) -> None:
    for hooks, keys in put:
        for key in keys:
            hooks.pop(key, None)


def _whole_outputs(module: Module, inputs: object, outputs: object) -> object:
    """The loop's own code sees whole tensors."""
    return map_tensors(outputs, lambda one: one.full_tensor() if isinstance(one, DTensor) else one)
