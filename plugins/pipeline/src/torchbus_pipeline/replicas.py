"""Several pipelines: ranks at the same place of each average what they have in common."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus.plugin import Context, hookimpl

from torchbus_pipeline._compat import buffers
from torchbus_pipeline.model.marks import mark_of
from torchbus_pipeline.model.models import Models
from torchbus_pipeline.team import Team
from torchbus_strategy.parameters import averaging


class Replicas:
    """Averages gradients, and copies the buffers of the first pipeline to the others."""

    def __init__(self, session: Context, models: Models, team: Team) -> None:
        self._session, self._models, self._team = session, models, team
        self._first = team.place  # the global rank of this place in the first pipeline
        self.remain = False

    def note(self, sync: bool) -> None:
        """Note whether the backward that has ended left gradients that are not averaged."""
        self.remain = not sync and self._team.parts > 1

    @torch.no_grad()
    def average(self, trained: list[Tensor]) -> None:
        """Average the gradients. One that no pipeline has stays None. All ranks call it."""
        group = self._team.replicas
        if group is None or not trained:
            return
        present = torch.tensor([float(one.grad is not None) for one in trained])
        present = present.to(self._session.device)
        dist.all_reduce(present, group=group)
        made = [one for one, count in zip(trained, present.tolist(), strict=True) if count]
        for one in made:
            one.grad = torch.zeros_like(one) if one.grad is None else one.grad.to_dense()
        averaging.mean_over([one.grad for one in made if one.grad is not None], group)

    def copy_buffers(self) -> None:
        """Give all pipelines the buffers of the first. All ranks call it."""
        group = self._team.replicas
        for buffer in self._buffers() if group is not None else ():
            dist.broadcast(buffer, self._first, group=group)

    def _buffers(self) -> list[Tensor]:
        found = [
            buffer
            for module in self._modules()
            for buffer in buffers(module).values()
            if buffer is not None and buffer.numel()
        ]
        return list({id(one): one for one in found}.values())

    def _modules(self) -> list[Module]:
        models = [model for cut in self._models if (model := cut.model()) is not None]
        modules = [module for model in models for module in model.modules()]
        return [
            module
            for module in modules
            if (mark := mark_of(module)) is None or mark.place == self._team.place
        ]

    @hookimpl(tryfirst=True)
    def gradients_ready(self, optimizer: Optimizer) -> None:
        """Average before a step what backwards under ``s.no_sync()`` have left."""
        if self.remain and self._session.captures(optimizer):
            self.average(self._models.trained())
            self.remain = False
