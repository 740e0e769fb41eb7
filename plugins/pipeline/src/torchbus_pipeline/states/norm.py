"""``clip_grad_norm_`` by the norm over the gradients of all stages."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torchbus.plugin import Context, hookimpl

from torchbus_pipeline.model.models import Models
from torchbus_pipeline.team import Team


class WholeNorm:
    """What every rank has counts once: on the first place of the pipeline."""

    def __init__(self, session: Context, models: Models, team: Team) -> None:
        self._session, self._models, self._team = session, models, team

    @hookimpl
    @torch.no_grad()
    def clip_gradients(
        self,
        parameters: list[Tensor],
        max_norm: float,
        norm_type: float,
        run: Callable[[float], Tensor],
    ) -> Tensor | None:
        inside = self._models.inside()
        if not any(id(one) in inside for one in parameters):
            return None
        here = [one.grad for one in parameters if one.grad is not None]
        counted = [
            one.grad
            for one in parameters
            if one.grad is not None and (id(one) in inside or self._team.place == 0)
        ]
        norm = self._combined(counted, float(norm_type), run)
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in here:
            gradient.mul_(factor.to(gradient.device, gradient.dtype))
        return norm

    def _combined(
        self, gradients: list[Tensor], kind: float, run: Callable[[float], Tensor]
    ) -> Tensor:
        """The norm over all ranks of the pipeline. They all call it."""
        norms = [torch.linalg.vector_norm(one, kind) for one in gradients]
        device = self._session.device
        own = torch.zeros((), dtype=torch.float64, device=device)
        if norms:
            own = torch.linalg.vector_norm(torch.stack([one.to(own) for one in norms]), kind)
        if not torch.isfinite(own):
            run(math.inf)  # raises, if the loop has said error_if_nonfinite=True
        if math.isinf(kind):
            dist.all_reduce(own, dist.ReduceOp.MAX, group=self._team.group)
        else:
            own = own**kind
            dist.all_reduce(own, group=self._team.group)
            own = own ** (1.0 / kind)
        return own.to(self._dtype())

    def _dtype(self) -> torch.dtype:
        """The same on all ranks, of which some may have no gradient."""
        model = next((model for cut in self._models if (model := cut.model()) is not None), None)
        return torch.get_default_dtype() if model is None else next(model.parameters()).dtype
