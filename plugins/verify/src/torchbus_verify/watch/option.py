"""The option ``verify_every``: when a step is checked, its record, and incompatible options."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import BackwardCall, Context, Unsupported, UsageError, expect, hookimpl

from torchbus_strategy.loss.weights import LossWeights
from torchbus_verify.record.steps import TensorNames
from torchbus_verify.watch.alone import Findings, Gradients, Noted, compare
from torchbus_verify.watch.calls import CallRecorder, dense

UNKNOWN = float("nan")


class CheckedStep:
    """A plugin that is registered during one step, the same on all ranks.

    A hook at each parameter records the gradient of the rank's local loss, before those of other
    ranks are added. A hook at the loss records the weight that the session gives it.
    """

    def __init__(
        self, session: Context, trained: TrainedModels, findings: Findings, number: int
    ) -> None:
        self.number = number
        self._session, self._trained, self._findings = session, trained, findings
        self._calls = CallRecorder(trained.modules)
        self._held: dict[str, Tensor] = {}
        self._before: Gradients = {}
        self._local: Gradients = {}
        self._weight = UNKNOWN
        self._hooks = ExitStack()
        self._mixed = False

    def close(self) -> None:
        """Remove every hook, and release the loop's tensors."""
        self._hooks.close()
        self._local, self._before, self._held = {}, {}, {}
        self._calls.close()

    @hookimpl(trylast=True)
    def before_backward(self, call: BackwardCall) -> None:
        self._mixed = self._mixed or not call.sync or call.create_graph
        if self._mixed:
            return
        self._held = self._trained.named()
        self._local, self._weight = {}, UNKNOWN
        self._before = {
            name: one.grad.detach().clone()
            for name, one in self._held.items()
            if one.grad is not None
        }
        for name, one in self._held.items():
            self._hooks.callback(one.register_hook(self._noting(name)).remove)
        loss, losses = call.loss, self._findings.losses
        if losses is not None:
            self._findings.is_sum = losses.are_sum(losses.read(loss))
        if loss is not None and loss.requires_grad and loss.numel() == 1:
            self._hooks.callback(loss.register_hook(self._note_weight).remove)

    def _noting(self, name: str) -> Callable[[Tensor], None]:
        def note(gradient: Tensor) -> None:
            """Called more than once if a part of the graph has a nested backward."""
            before = self._local.get(name)
            mine = dense(gradient.detach())
            self._local[name] = mine.clone() if before is None else before + mine

        return note

    def _note_weight(self, gradient: Tensor) -> None:
        self._weight = float(gradient)

    @hookimpl
    def backward_failed(self, call: BackwardCall) -> None:
        self._hooks.close()
        self._mixed = True

    @hookimpl(trylast=True)
    def after_backward(self, call: BackwardCall) -> None:
        self._hooks.close()
        if self._mixed:
            return self._findings.leave_out(
                "the step has a backward that synchronises nothing, or whose graph is kept for"
                " another derivative"
            )
        with torch.no_grad():
            self._compare()
        self._local, self._before = {}, {}

    def _compare(self) -> None:
        if not self._session.share.weight:  # its batch only fills in for missing samples
            self._leave_out_local()
        found = {
            name: _made(one.grad.detach(), self._before.get(name))
            for name, one in self._held.items()
            if one.grad is not None
        }
        noted = Noted(self._held, found, self._local, self._weight, self._calls)
        compare(self._session, self._findings, self.number, noted)
        self._calls.drop_gradients()

    def _leave_out_local(self) -> None:
        """Discard this rank's gradients and calls: the session drops gradients without weight."""
        if any(bool(one.any()) for one in self._local.values()):
            self._local, self._weight = {}, 0.0
        self._calls.drop_gradients()


def _made(gradient: Tensor, before: Tensor | None) -> Tensor:
    return dense(gradient if before is None else gradient - before)


class TrainedModels:
    """Tracks optimizers, and finds their models on request, once in a checked step."""

    def __init__(self) -> None:
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._others: list[weakref.ref[Tensor]] = []
        self._names = TensorNames()

    def add(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        """Add an optimizer, or parameters that were adopted without one (None)."""
        if optimizer is None:
            self._others += [weakref.ref(one) for one in parameters]
        elif all(known() is not optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def named(self) -> dict[str, Tensor]:
        """Return the parameters of all optimizers by name. All ranks get the same names."""
        found: dict[str, Tensor] = {}
        for number, known in enumerate(self._optimizers):
            optimizer = known()
            if optimizer is not None:
                found |= self._names.parameters(optimizer, number)
        held = {id(one) for one in found.values()}
        others = [one for one in (known() for known in self._others) if one is not None]
        found |= {f"adopted.{i}": one for i, one in enumerate(others) if id(one) not in held}
        return {name: one for name, one in found.items() if one.requires_grad}

    def modules(self) -> list[Module]:
        """Return the models of these parameters and all submodules, in one order on all ranks."""
        roots = objects.models_of(self.named().values())
        return [module for root in roots for module in root.modules()]


STRATEGIES = ("ddp", "ddp_spawn", "ddp_notebook")
WHOLE_GRADIENTS = "allreduce"
NAME = "verify.step"


class VerifyEvery:
    """Checks the gradients every ``verify_every`` steps.

    In such a step, rank 0 gets the inputs of all ranks, and computes their gradients. It compares
    their mean with the session's average, and warns of a difference. Gradients do not change, and
    other steps are not slower.

    Args:
        verify_every: the number of steps from one check to the next.
    """

    hears_trials = False

    def __init__(self, verify_every: int) -> None:
        expect("verify_every", verify_every, int, "a number of steps")
        if verify_every < 1:
            raise UsageError(f"verify_every={verify_every}: it must be 1 or more")
        self._every = verify_every
        self._findings = Findings()
        self._session: Context | None = None
        self._trained: TrainedModels | None = None
        self._step: CheckedStep | None = None

    @hookimpl(trylast=True)
    def session_start(self, session: Context) -> None:
        if session.world_size == 1:
            return
        loss_reduction = _checked(session, self._every)
        self._session, self._trained = session, TrainedModels()
        session.steps.follow()
        self._findings.is_sum = loss_reduction == "sum"
        if loss_reduction == "auto":
            self._findings.losses = LossWeights(session, sums=True)
        self._turn()

    @hookimpl(trylast=True)
    def parameters_added(self, optimizer: Optimizer | None, parameters: list[Tensor]) -> None:
        if self._trained is not None:
            self._trained.add(optimizer, parameters)

    @hookimpl(trylast=True)
    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        if self._session is not None:
            self._turn()

    def _turn(self) -> None:
        """Register the check before a checked step, and remove it afterwards."""
        session, trained = self._session, self._trained
        assert session is not None and trained is not None
        step = session.steps.count + 1
        if self._step is not None and self._step.number != step:
            self._end(session, self._step)
        if self._step is None and step % self._every == 0:
            self._step = CheckedStep(session, trained, self._findings, step)
            session.add_plugin(self._step, NAME)

    def _end(self, session: Context, step: CheckedStep) -> None:
        step.close()
        session.bus.unregister(step)
        self._step = None

    @hookimpl
    def session_end(self, session: Context, error: BaseException | None) -> None:
        if self._step is not None:
            self._end(session, self._step)

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        if self._session is None:
            return {"verification": ["verify_every: one rank, nothing to compare"]}
        return {"verification": self._findings.lines(self._every)}


def _checked(session: Context, every: int) -> str:
    """Return the loss's reduction over samples, mean or sum. Raises for incompatible options."""
    owners = [one for _, one in session.bus.plugins() if "strategy" in getattr(one, "owns", ())]
    strategy = owners[0] if owners else None
    asked = session.options["strategy"]
    name = getattr(strategy, "name", asked if isinstance(asked, str) else type(strategy).__name__)
    if name not in STRATEGIES:
        raise Unsupported(
            f"verify_every={every} with strategy {name!r}: only ddp's gradients can be compared in"
            f" a running session. Use strategy='ddp', or run torchbus verify --strategy {name}"
        )
    if session.options.get("accumulate_grad_batches") not in (None, 1):
        raise Unsupported(
            f"verify_every={every} with accumulate_grad_batches: the gradient of a step is that of"
            " several batches, which rank 0 does not keep. Leave one of them out"
        )
    algorithm = session.options.get("gradient_algorithm", WHOLE_GRADIENTS)
    if algorithm != WHOLE_GRADIENTS:
        raise Unsupported(
            f"verify_every={every} with gradient_algorithm={algorithm!r}, which changes gradients"
            " on purpose: leave one of them out"
        )
    return str(getattr(strategy, "loss_reduction", "mean"))
