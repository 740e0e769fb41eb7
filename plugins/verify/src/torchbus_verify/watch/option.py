"""The option ``verify_every``: when a step is checked, and incompatible options."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer
from torchbus.plugin import Context, Unsupported, UsageError, expect, hookimpl

from torchbus_strategy.loss.weights import LossWeights
from torchbus_verify.watch.alone import Findings
from torchbus_verify.watch.checked_step import CheckedStep, Trained

STRATEGIES = ("ddp", "ddp_spawn", "ddp_notebook")
WHOLE_GRADIENTS = "allreduce"
NAME = "verify.step"


class VerifyEvery:
    """Checks the gradients every ``verify_every`` steps.

    In such a step, rank 0 gets the inputs of all ranks, and computes their gradients. It compares
    their mean with the session's average, and warns of a difference. Gradients do not change, and
    other steps cost nothing.

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
        self._trained: Trained | None = None
        self._step: CheckedStep | None = None

    @hookimpl(trylast=True)
    def session_start(self, session: Context) -> None:
        if session.world_size == 1:
            return
        loss_reduction = _checked(session, self._every)
        self._session, self._trained = session, Trained()
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
