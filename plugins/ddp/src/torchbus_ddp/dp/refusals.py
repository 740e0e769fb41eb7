"""Models whose inputs dp can't divide."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn import Module
from torchbus.plugin import Unsupported, UsageError

from torchbus_ddp.dp.rows import Rows


def refuse_time_first(model: Module) -> None:
    """Raise UsageError for a model with a part that has time in dim 0.

    Divided there, it would compute something else without a message.
    """
    for path, module in model.named_modules():
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and not module.batch_first:
            place = f"{type(model).__name__}.{path}" if path else "the model"
            raise UsageError(
                f"strategy='dp': {place} ({type(module).__name__}) has batch_first=False, so time"
                " in dim 0 and the batch in dim 1: say batch_dim=1, or batch_dim=0 if"
                f" {type(model).__name__}.forward takes the batch first"
            )


@contextmanager
def failing(model: Module, rows: Rows, dim: int) -> Iterator[None]:
    """Explain an error in the first divided forward: that of the whole batch has succeeded."""
    try:
        yield
    except (RuntimeError, IndexError, ValueError) as error:
        raise Unsupported(
            f"strategy='dp': {type(model).__name__}.forward fails for {rows.computed} of the"
            f" {rows.total} rows that its inputs have in dim {dim} ({error}). If the batch is in"
            " another dimension, say batch_dim=; if forward mixes the rows, or needs all of them,"
            " use strategy='ddp'"
        ) from error
