"""One step that is checked: what is noted in it, and when it is compared."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor
from torchbus.plugin import BackwardCall, Context, hookimpl

from torchbus_verify.watch.alone import Noted, compare
from torchbus_verify.watch.calls import Calls
from torchbus_verify.watch.findings import Findings, Gradients, dense
from torchbus_verify.watch.trained import Trained

UNKNOWN = float("nan")


class CheckedStep:
    """A plugin for the time of one step. All ranks have it in the same step.

    A hook at each parameter notes the gradient of the rank's own loss, before any rank's is added.
    A hook at the loss notes by how much the session weighs it.
    """

    def __init__(self, session: Context, trained: Trained, findings: Findings, number: int) -> None:
        self.number = number
        self._session, self._trained, self._findings = session, trained, findings
        self._calls = Calls(trained.modules)
        self._held: dict[str, Tensor] = {}
        self._before: Gradients = {}
        self._own: Gradients = {}
        self._weight = UNKNOWN
        self._hooks = ExitStack()
        self._mixed = False

    def close(self) -> None:
        """Remove every hook, and let go of the loop's tensors."""
        self._hooks.close()
        self._own, self._before, self._held = {}, {}, {}
        self._calls.close()

    @hookimpl(trylast=True)
    def before_backward(self, call: BackwardCall) -> None:
        self._mixed = self._mixed or not call.sync or call.create_graph
        if self._mixed:
            return
        self._held = self._trained.named()
        self._own, self._weight = {}, UNKNOWN
        self._before = {
            name: one.grad.detach().clone()
            for name, one in self._held.items()
            if one.grad is not None
        }
        for name, one in self._held.items():
            self._hooks.callback(one.register_hook(self._noting(name)).remove)
        loss = call.loss
        if self._findings.losses is not None:
            self._findings.is_sum = self._findings.losses.is_sum(loss)
        if loss is not None and loss.requires_grad and loss.numel() == 1:
            self._hooks.callback(loss.register_hook(self._note_weight).remove)

    def _noting(self, name: str) -> Callable[[Tensor], None]:
        def note(gradient: Tensor) -> None:
            """Called more than once if a part of the graph has a backward of its own."""
            before = self._own.get(name)
            own = dense(gradient.detach())
            self._own[name] = own.clone() if before is None else before + own

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
        self._own, self._before = {}, {}

    def _compare(self) -> None:
        if not self._session.share.weight:  # its batch only fills in for missing samples
            self._leave_out_own()
        found = {
            name: _made(one.grad.detach(), self._before.get(name))
            for name, one in self._held.items()
            if one.grad is not None
        }
        noted = Noted(self._held, found, self._own, self._weight, self._calls)
        compare(self._session, self._findings, self.number, noted)
        self._calls.drop_gradients()

    def _leave_out_own(self) -> None:
        """The session drops gradients without weight, unless terms of the loss have made zeros."""
        if any(bool(one.any()) for one in self._own.values()):
            self._own, self._weight = {}, 0.0
        self._calls.drop_gradients()


def _made(gradient: Tensor, before: Tensor | None) -> Tensor:
    return dense(gradient if before is None else gradient - before)
