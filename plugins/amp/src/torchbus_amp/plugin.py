"""Turns ``precision=`` into autocast, loss scaling, conversion or float8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, get_args

import torch
from torch.optim import LBFGS, Optimizer
from torchbus.plugin import Context, UsageError, expect, hookimpl, needs

from torchbus_amp import float8
from torchbus_amp.float8 import Float8
from torchbus_amp.models import Autocast, CastModels, Converted
from torchbus_amp.scaling import LossScaling

DTYPES = {"16": torch.float16, "bf16": torch.bfloat16, "32": torch.float32, "64": torch.float64}
PrecisionName = Literal[
    "32-true", "64-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "fp8"
]
PRECISIONS: tuple[str, ...] = get_args(PrecisionName)
LISTED = ", ".join(map(repr, PRECISIONS))
ELSEWHERE = {
    "no": "32-true",
    "32": "32-true",
    "fp32": "32-true",
    "64": "64-true",
    "16": "16-mixed",
    "fp16": "16-mixed",
    "bf16": "bf16-mixed",
}
"""What others call them. Those names are not accepted: "bf16" is "bf16-true" in some libraries."""


class ScalerStates(TypedDict):
    """The loss scales, as plain numbers."""

    scales: list[dict[str, object]]


@needs("precision", "amp_backend")
class Precision:
    """Sets the precision of an unchanged loop.

    Args:
        precision: "16-mixed" and "bf16-mixed" run forward under autocast (float16 with loss
            scaling); "16-true", "bf16-true" and "64-true" convert the model and its inputs; "fp8"
            is "bf16-mixed" with linear layers in float8, by torchao; "32-true" does nothing.
        amp_backend: "native", torch's own autocast. There is no other.
        fp8_config: a recipe of torchao, "tensorwise", "rowwise" or "rowwise_with_gw_hp", or its
            Float8LinearConfig.
        fp8_skip: names of layers, or patterns such as "*.gate", that don't multiply in float8.

    ``state_dict()`` and ``load_state_dict(state)`` are for checkpoints, which must keep the loss
    scales.

    Raises:
        UsageError: an option has another type or value.

    Source: Micikevicius et al., Mixed Precision Training, ICLR 2018, and FP8 Formats for Deep
    Learning, https://arxiv.org/abs/2209.05433
    """

    owns = ("precision",)

    def __init__(
        self,
        precision: PrecisionName = "32-true",
        amp_backend: str = "native",
        *,
        fp8_config: object = "tensorwise",
        fp8_skip: Sequence[str] = (),
    ) -> None:
        if amp_backend == "apex":
            raise UsageError(
                "amp_backend='apex': apex.amp is no longer maintained. Its successors, torch's own"
                " autocast and loss scaling, need no patched model and no extra build: leave"
                " amp_backend out and use precision='16-mixed' or 'bf16-mixed'"
            )
        if amp_backend != "native":
            raise UsageError(f"amp_backend={amp_backend!r} is unknown: use 'native'")
        if precision not in PRECISIONS:
            name = ELSEWHERE.get(str(precision))
            remedy = f"here it is called {name!r}" if name else f"use one of {LISTED}"
            raise UsageError(f"precision={precision!r} is unknown: {remedy}")
        expect("fp8_skip", fp8_skip, (list, tuple), "names of layers, as ('head',)")
        if precision != "fp8" and (fp8_config != "tensorwise" or fp8_skip):
            raise UsageError(
                f"fp8_config and fp8_skip with precision={precision!r}: they would do nothing. Pass"
                " precision='fp8', or leave them out"
            )
        self.precision = precision
        self._float8: Any = float8.read(fp8_config) if precision == "fp8" else None
        self._skip = tuple(fp8_skip)
        self._session: Context | None = None
        self.models: CastModels | None = None
        self.scaling: LossScaling | None = None

    @hookimpl(tryfirst=True)
    def launch(self, session: Context) -> None:
        """Before any rank starts."""
        if self._float8 is not None:
            float8.refuse_device_type(session.device.type, self._float8)
            float8.refuse_tp(session)

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session
        if self.precision == "32-true":
            return
        self.models = self._models(session)
        session.bus.register(self.models, "amp.models")
        if self.precision == "16-mixed":
            self.scaling = LossScaling(session)
            session.bus.register(self.scaling, "amp.scaling")

    def _models(self, session: Context) -> CastModels:
        if self._float8 is not None:
            float8.refuse_device(session.device, self._float8)
            return Float8(session, self._float8, self._skip)
        kind, way = self.precision.split("-")
        return (Autocast if way == "mixed" else Converted)(session, DTYPES[kind])

    @hookimpl(tryfirst=True)
    def parameters_added(self, optimizer: Optimizer | None) -> None:
        if (
            self.precision == "16-true"
            and optimizer is not None
            and self._session is not None
            and self._session.captures(optimizer)
        ):
            refuse_in_float16(optimizer)

    def state_dict(self) -> ScalerStates:
        """The loss scales, one for each optimizer in the order in which these were made."""
        return {"scales": [] if self.scaling is None else self.scaling.state_dict()}

    def load_state_dict(self, state: ScalerStates) -> None:
        """Load the scales of the optimizers that there are, in order, and of those to come.

        All ranks call it with the same scales, inside the block.
        """
        if self.scaling is not None:
            self.scaling.load_state_dict(state["scales"])

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"precision": [self.precision]}


def refuse_in_float16(optimizer: Optimizer) -> None:
    """Raise UsageError for optimizers that can't compute in float16."""
    name = type(optimizer).__name__
    advice = "use precision='16-mixed' or 'bf16-true'"
    if isinstance(optimizer, LBFGS):
        raise UsageError(
            f"precision='16-true' with LBFGS: its inner products overflow in float16; {advice}"
        )
    for group in optimizer.param_groups:
        eps = group.get("eps")
        if (
            eps is not None
            and not isinstance(eps, tuple)
            and eps > 0
            and torch.tensor(eps, dtype=torch.float16) == 0
        ):
            raise UsageError(
                f"precision='16-true' with {name}: its eps={eps:g} is 0 in float16, and it divides"
                f" by it; pass eps=1e-4, or {advice}"
            )
