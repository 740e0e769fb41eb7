"""Embeddings with ``max_norm``: their forward shrinks the rows that it looks up."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn import Module

from torchbus._session.context import Context
from torchbus.errors import Unsupported


def refuse_renormalised(session: Context, models: Iterable[Module]) -> None:
    """Raise Unsupported for trained ones: ranks would have different weights without a message."""
    for model in models if session.world.divides_samples else ():
        for name, table in model.named_modules():
            if (
                isinstance(table, nn.Embedding | nn.EmbeddingBag)
                and table.max_norm is not None
                and table.weight.requires_grad
            ):
                raise Unsupported(
                    f"max_norm={table.max_norm} of {type(table).__name__}"
                    f" {name or 'itself'} in {type(model).__name__}: each rank would shrink only"
                    " the rows that its own samples use. Leave max_norm out, and shrink all rows"
                    " after each step, under torch.no_grad():"
                    f" weight.div_((weight.norm({table.norm_type:g}, 1, keepdim=True)"
                    f" / {table.max_norm}).clamp(min=1))"
                )
