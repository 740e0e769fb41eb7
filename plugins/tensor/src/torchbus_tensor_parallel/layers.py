"""Divides the layers of a model that a plan names, in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.nn import Module
from torchbus.plugin import UsageError
from torchbus.tree import leaves, map_tensors

from torchbus_tensor_parallel._compat import forget_distribution, hooks_after, hooks_before
from torchbus_tensor_parallel.checks import (
    refuse_divided,
    refuse_hooks,
    refuse_local_dropout,
    refuse_shared,
)
from torchbus_tensor_parallel.dtensor import divide_between, gathered
from torchbus_tensor_parallel.plans import ModulePlan


class DividedLayers:
    """The divided layers of a model, over the 1-D ``mesh``.

    Args:
        plan: Names the layers, and says how each is divided.
        mesh: The ranks that share a layer.
        undo: Removes what ``divide`` puts into modules.
        keeps_logits: Whether outputs that are divided in their last dimension stay divided.
        gather: Makes other outputs whole.
        may_mix: Whether plain outputs of layers may be combined with DTensors. Under fsdp this is
            False, because a parameter's use outside of forward would not be noticed.
    """

    def __init__(
        self,
        plan: ModulePlan,
        mesh: DeviceMesh,
        undo: ExitStack,
        keeps_logits: bool,
        gather: Callable[[Tensor], Tensor],
        may_mix: bool,
    ) -> None:
        self._may_mix = may_mix
        self._plan, self._mesh, self._undo = plan, mesh, undo
        self._keeps_logits, self._gather = keeps_logits, gather

    def divide(self, model: Module) -> int:
        """Divide a model, and return how many layers were divided.

        All ranks call it, with equal parameters.
        Raises UsageError or Unsupported if the plan does not fit the model.
        """
        styles, runs = self._plan.of(model, self._mesh.size())
        if not styles:
            return 0
        refuse_divided(model, styles)
        refuse_shared(model, styles)
        refuse_hooks(model, styles)
        refuse_local_dropout(model, styles)
        trained = {name: one.requires_grad for name, one in model.named_parameters()}
        self._apply(model, styles)
        for name, new in model.named_parameters():
            new.requires_grad_(trained[name])
        for run in runs:
            blocks = [model.get_submodule(one) for one in run]
            for undo in divide_between(blocks, self._mesh, self._gather):
                self._undo.callback(undo)
        self._undo.callback(model.register_forward_hook(self._outputs).remove)
        return len(styles)

    def _apply(self, model: Module, styles: Mapping[str, ParallelStyle]) -> None:
        before = _hooks(model)
        for name, style in styles.items():
            layer = model.get_submodule(name)
            parallelize_module(layer, self._mesh, style)
            if self._may_mix:
                layer.register_forward_hook(_ready_to_mix)
        put = [
            (hooks, keys - old)
            for (hooks, keys), (_, old) in zip(_hooks(model), before, strict=True)
        ]
        self._undo.callback(_remove, put)
        for module in model.modules():
            self._undo.callback(forget_distribution, module)

    def _outputs(self, model: Module, inputs: object, outputs: object) -> object:
        """Give the loop whole tensors, and divided logits if it has asked for them."""
        if not self._keeps_logits:
            return map_tensors(outputs, self._gather)
        _refuse_whole(model, outputs)
        return map_tensors(outputs, lambda one: one if _are_logits(one) else self._gather(one))


Hooks = list[tuple[dict[int, object], set[int]]]


def _hooks(model: Module) -> Hooks:
    """Return each module's tables of hooks around forward, with their present keys."""
    kinds: tuple[Callable[[Module], dict[int, object]], ...] = (hooks_before, hooks_after)
    return [(kind(module), set(kind(module))) for module in model.modules() for kind in kinds]


def _remove(put: Hooks) -> None:
    for hooks, keys in put:
        for key in keys:
            hooks.pop(key, None)


def _ready_to_mix(layer: Module, inputs: object, outputs: object) -> None:
    """Allow the model's code to combine plain outputs of a layer with DTensors."""
    for one in leaves(outputs):
        if isinstance(one, Tensor) and not isinstance(one, DTensor):
            gathered(one)


def gathered_copy(one: Tensor) -> Tensor:
    """Return a whole tensor that is not a view: fsdp could not follow what the loop writes to one.

    A plain tensor is returned as it is.
    """
    return one.full_tensor().clone() if isinstance(one, DTensor) else one


def _refuse_whole(module: Module, outputs: object) -> None:
    if not any(_are_logits(one) for one in leaves(outputs)):
        raise UsageError(
            f"loss_parallel=True: no output of {type(module).__name__} is divided in its last"
            " dimension. Name its last layer in the plan, such as plan={'head': 'colwise'}, or"
            " leave loss_parallel out"
        )


def _are_logits(one: object) -> bool:
    return isinstance(one, DTensor) and list(one.placements) == [Shard(one.dim() - 1)]
