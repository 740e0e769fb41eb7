"""A plan for each set of parameters that require gradients."""

from __future__ import annotations

from torch.nn import Module
from torchbus.plugin import Context

from torchbus_ddp._compat import parameters as parameters_of
from torchbus_ddp.backward.plan import Plan
from torchbus_ddp.backward.reducer import ReducerOptions
from torchbus_strategy.parameters import rank0_values
from torchbus_strategy.parameters import trained as strategy_trained


class Plans:
    """Made when they are first needed, and kept until the parameters change."""

    def __init__(
        self, session: Context, trained: strategy_trained.Trained, options: ReducerOptions
    ) -> None:
        self._session = session
        self._trained = trained
        self._options = options
        self._made: dict[tuple[bool, ...], Plan] = {}

    def current(self) -> Plan:
        """The plan for the parameters that require gradients now. All ranks call it."""
        self._trained.look_for_replaced()
        key = tuple([parameter.requires_grad for parameter in self._trained.parameters])
        plan = self._made.get(key)
        return self._make(key) if plan is None else plan

    def _make(self, key: tuple[bool, ...]) -> Plan:
        parameters = self._trained.requiring_gradients()
        models = self._trained.models(parameters)
        plan = self._made[key] = Plan(
            self._session,
            parameters,
            rank0_values.Buffers(models),
            self._trained.holders(parameters),
            _sparse(models),
            self._options,
        )
        return plan

    def drop(self) -> None:
        for plan in self._made.values():
            plan.close()
        self._made.clear()


def _sparse(models: list[Module]) -> set[int]:
    """The ids of parameters that belong to an Embedding with sparse gradients."""
    modules = [
        module
        for model in models
        for module in model.modules()
        if getattr(module, "sparse", False) is True
    ]
    return {id(parameters_of(module).get("weight")) for module in modules}
