"""The table as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from torchbus_cli.parser import table
from torchbus_throughput import _compat
from torchbus_throughput.summary.look import Look, Row

HEAD = ["module", "class", "in", "out", "parameters", "trainable", "forward FLOPs"]


def text(looks: Sequence[tuple[str, Look]], numel: Callable[[Tensor], int]) -> str:
    """Return a table of models, each with its name. A parameter that is shared counts once.

    ``numel``: how many elements a whole parameter has, of which a rank may keep only some.
    """
    rows = [_cells(name, look, row, numel) for name, look in looks for row in look.rows]
    return table([HEAD, *rows])


def _cells(name: str, look: Look, row: Row, numel: Callable[[Tensor], int]) -> list[str]:
    label = "  " * row.level + (row.path.rpartition(".")[2] if row.level else name)
    if row.same_as is not None:
        return [label, f"the same as {row.same_as}", "", "", "", "", ""]
    call = look.calls.get(id(row.module))
    parameters = list(row.module.parameters())
    trainable = [one for one in parameters if one.requires_grad]
    return [
        label,
        _class(row),
        "-" if call is None else call.gets,
        "-" if call is None else call.returns,
        f"{sum(map(numel, parameters)):,}",
        f"{sum(map(numel, trainable)):,}",
        "-" if call is None or call.flops is None else f"{call.flops:,}",
    ]


def _class(row: Row) -> str:
    name = type(_compat.compiled_from(row.module)).__name__
    return f"{name}, compiled" if _compat.is_compiled(row.module) else name
