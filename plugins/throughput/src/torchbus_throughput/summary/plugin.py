"""The plugin behind ``model_summary``: which step it looks at."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Context, UsageError, expect, hookimpl, users_frame, warn

from torchbus_throughput._compat import compiled_graphs
from torchbus_throughput.summary.look import Look
from torchbus_throughput.summary.text import text


class ModelSummary:
    """Prints a table of each model on rank 0, when the first optimizer step has run.

    It has modules with the shapes of what they get and return, parameters, and the floating-point
    operations of the forward. Hooks watch each model's first call, and are removed after the step.

    Args:
        model_summary: True for a model and its parts, or how many levels of parts.
    """

    owns = ("model summary",)

    def __init__(self, *, model_summary: bool | int = True) -> None:
        expect("model_summary", model_summary, (bool, int), "True, False, or a number of levels")
        if model_summary < 0:
            raise UsageError(f"model_summary={model_summary}: it must be 0 or more levels of parts")
        self._depth = int(model_summary)

    @hookimpl
    def session_start(self, session: Context) -> None:
        if self._depth and session.is_main:
            session.bus.register(FirstStep(session, self._depth), "model_summary.first_step")

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]] | None:
        how = f"rank 0 prints each model, {self._depth} level(s) deep, after the first step"
        return {"summary": [how]} if self._depth else None


class FirstStep:
    """Looks at the models until the first real step is over."""

    def __init__(self, session: Context, depth: int) -> None:
        self._session = session
        self._depth = depth
        self._graphs_before = compiled_graphs()
        self._looks: list[Look] = []
        session.on_close.callback(self._end)

    @hookimpl
    def model_found(self, model: Module, calling: bool) -> None:
        if objects.is_internal(model) or not self._session.captures(model):
            return
        look = Look(model, self._depth, self._graphs_before)
        self._looks.append(look)
        if calling:
            look.begin(model)

    @hookimpl
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        looks, frame = self._looks, users_frame()[0]
        self._end()
        self._session.bus.unregister(self)
        try:
            named = [
                (objects.name_of(one.model, frame) or type(one.model).__name__, one)
                for one in looks
            ]
            print(text(named, self._numel))
        except Exception as error:
            warn(f"model_summary: no table could be made: {error!r}. Training continues")

    def _numel(self, parameter: Tensor) -> int:
        return objects.shape_of(parameter, self._session.bus).numel()

    def _end(self) -> None:
        for look in self._looks:
            look.close()
        self._looks = []
