"""fsdp on one rank: nothing is divided.

Models on the meta device get the same values as on many ranks.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Context, hookimpl

from torchbus_sharded.engine import parameter_hooks
from torchbus_sharded.engine.meta import MetaModules, ParamInit
from torchbus_strategy import sharding


class SingleRank:
    """Fills models on the meta device, at the events at which ``ShardedModels`` divides them."""

    def __init__(self, session: Context, param_init_fn: ParamInit | None) -> None:
        self._session = session
        self._param_init_fn = param_init_fn
        self._replaced: dict[int, nn.Parameter] = {}
        self._old: list[Tensor] = []
        session.on_close.callback(self._replaced.clear)
        session.on_close.callback(self._old.clear)

    @hookimpl(tryfirst=True)
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if optimizer is None or not self._session.captures(optimizer):
            return
        for model in objects.models_of(
            [
                parameter
                for parameter in parameters
                if parameter.is_meta and id(parameter) not in self._replaced
            ]
        ):
            self._fill(model)
        sharding.swap(optimizer, self._replaced)

    @hookimpl
    def model_found(self, model: Module, calling: bool) -> None:
        if self._session.captures(model) and not calling:
            self._fill(model)

    def fill_made_before(self) -> None:
        for optimizer in objects.optimizers():
            self.parameters_added(
                optimizer,
                [parameter for group in optimizer.param_groups for parameter in group["params"]],
            )

    def _fill(self, model: Module) -> None:
        modules = MetaModules(model, self._param_init_fn)
        if not modules:
            return
        before = parameter_hooks.named(model)
        with self._session.random.order():
            modules.fill(self._session.device, self._session.device, lambda _: None)
        after = parameter_hooks.named(model)
        self._replaced |= {id(before[name]): after[name] for name in before if before[name].is_meta}
        self._old += before.values()
