"""``sequence_parallel``: between the layers of a plan, each rank has a part of the sequence.

That holds inside blocks: the children of an nn.ModuleList or nn.Sequential that have such layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from torch import nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
)
from torch.nn import Module
from torchbus.plugin import UsageError

SEQUENCE = 1
STYLES: dict[str, ParallelStyle] = {
    "colwise": ColwiseParallel(input_layouts=Shard(SEQUENCE), use_local_output=False),
    "rowwise": RowwiseParallel(output_layouts=Shard(SEQUENCE), use_local_output=False),
}
NORM = SequenceParallel(sequence_dim=SEQUENCE)
NORMS = ("layernorm", "rmsnorm")


def runs(model: Module, planned: Mapping[str, object]) -> list[list[str]]:
    """The names of blocks, those in one list that follow each other.

    Raises UsageError if there are none.
    """
    found = [run for name in _lists(model) for run in _runs(model, name, planned)]
    if planned and not found:
        raise UsageError(
            f"sequence_parallel=True: no nn.ModuleList or nn.Sequential of {type(model).__name__}"
            " has blocks with layers of the plan. Leave it out"
        )
    return found


def styles(
    model: Module, planned: Mapping[str, str | ParallelStyle], blocks: list[str]
) -> dict[str, ParallelStyle]:
    """The styles of all modules inside the blocks that have parameters.

    Raises UsageError for a module that would need the whole sequence.
    """
    found: dict[str, ParallelStyle] = {}
    for block in blocks:
        for path, one in model.get_submodule(block).named_modules(prefix=block):
            if path in planned:
                found[path] = _with_parts(model, path, one, planned[path])
            elif any(True for _ in one.parameters(recurse=False)):
                _refuse_unless_norm(model, path, one)
                found[path] = NORM
    return found


def _lists(model: Module) -> list[str]:
    """The outermost lists of modules."""
    names = [
        n for n, one in model.named_modules() if isinstance(one, nn.ModuleList | nn.Sequential)
    ]
    return [n for n in names if not any(n != o and f"{n}.".startswith(_prefix(o)) for o in names)]


def _runs(model: Module, name: str, planned: Mapping[str, object]) -> Iterator[list[str]]:
    children = [f"{_prefix(name)}{one}" for one, _ in model.get_submodule(name).named_children()]
    for has_layers, run in groupby(
        children, lambda child: any(one.startswith(f"{child}.") for one in planned)
    ):
        if has_layers:
            yield list(run)


def _prefix(name: str) -> str:
    return f"{name}." if name else ""


def _with_parts(
    model: Module, path: str, layer: Module, style: str | ParallelStyle
) -> ParallelStyle:
    if isinstance(style, str) and isinstance(layer, nn.Linear):
        return STYLES[style]
    raise UsageError(
        f"sequence_parallel=True: {type(model).__name__}.{path} is in a block, and there the plan"
        " may name Linear layers, by 'colwise' or 'rowwise'. Change the plan, or leave"
        " sequence_parallel out"
    )


def _refuse_unless_norm(model: Module, path: str, module: Module) -> None:
    if not type(module).__name__.lower().endswith(NORMS):
        raise UsageError(
            f"sequence_parallel=True: {type(model).__name__}.{path} ({type(module).__name__}) has"
            " parameters and is no LayerNorm or RMSNorm, and it would see a part of the sequence:"
            " name it in the plan, or leave sequence_parallel out"
        )
