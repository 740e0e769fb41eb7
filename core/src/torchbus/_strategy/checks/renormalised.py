"""Embeddings with ``max_norm``, whose forward shrinks the rows that it looks up, and those with
``scale_grad_by_freq``, whose backward divides by how often a batch has a row.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn import Module

from torchbus._session.context import Context
from torchbus._session.notices import warn_of_gradients
from torchbus.errors import Unsupported

BY_FREQUENCY = (
    "scale_grad_by_freq=True of {} in {}: each rank divides a row's gradient by how often its own"
    " share of the batch has the row, where one process divides by how often the whole batch has"
    " it. Leave the option out to train alike"
)


def refuse_renormalised(session: Context, models: Iterable[Module]) -> None:
    """Raise Unsupported for trained ones with ``max_norm``: ranks would have different weights
    without a message. Warn of those with ``scale_grad_by_freq``.
    """
    for model in models if session.world.divides_samples else ():
        for name, table in model.named_modules():
            if not isinstance(table, nn.Embedding | nn.EmbeddingBag):
                continue
            if not table.weight.requires_grad:
                continue
            if table.scale_grad_by_freq and session.is_main:
                warn_of_gradients(BY_FREQUENCY.format(name or "itself", type(model).__name__))
            if table.max_norm is not None:
                raise Unsupported(
                    f"max_norm={table.max_norm} of {type(table).__name__}"
                    f" {name or 'itself'} in {type(model).__name__}: each rank would shrink only"
                    " the rows that its own samples use. Leave max_norm out, and shrink all rows"
                    " after each step, under torch.no_grad():"
                    f" weight.div_((weight.norm({table.norm_type:g}, 1, keepdim=True)"
                    f" / {table.max_norm}).clamp(min=1))"
                )
