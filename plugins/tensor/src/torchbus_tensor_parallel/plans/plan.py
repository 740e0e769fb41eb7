"""The option ``plan``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from fnmatch import fnmatchcase

from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
)
from torch.nn import Module
from torchbus.plugin import UsageError, expect

from torchbus_tensor_parallel.plans import auto, sequence
from torchbus_tensor_parallel.plans.names import common, short

PlanOption = Mapping[str, "str | ParallelStyle"] | str
STYLES: dict[str, ParallelStyle] = {
    # DTensors between the two: all that the loop's own code does in between has one meaning
    "colwise": ColwiseParallel(use_local_output=False),
    "rowwise": RowwiseParallel(input_layouts=Replicate()),
}
USAGE = (
    "say plan='auto', or a dict from names of modules to 'colwise', 'rowwise' or a ParallelStyle of"
    " torch, such as plan={'blocks.*.up': 'colwise', 'blocks.*.down': 'rowwise'}"
)
DIVIDED = (nn.Linear, nn.Embedding)


class Plan:
    """Finds the modules of each model that the option names.

    Raises UsageError if the option is of another type, or a style is unknown.
    """

    def __init__(self, option: PlanOption, sequence_parallel: bool = False) -> None:
        expect("sequence_parallel", sequence_parallel, bool, "True or False")
        if option != "auto" and not (isinstance(option, Mapping) and option):
            raise UsageError(f"plan={option!r}: {USAGE}")
        self._patterns = {} if isinstance(option, str) else dict(option)
        self._is_auto = isinstance(option, str)
        self._by_sequence = sequence_parallel
        self._has_models = False
        self._used: set[str] = set()
        self._seen: dict[str, None] = {}
        self._left: dict[str, None] = {}
        self._said: dict[str, None] = {}
        for pattern, style in self._patterns.items():
            _check(pattern, style)

    def of(self, model: Module, size: int) -> tuple[dict[str, ParallelStyle], list[list[str]]]:
        """The styles of the model's modules, by name, for ``size`` ranks.

        Also the blocks inside which the sequence is divided, those that follow each other.
        Raises UsageError if a module can't be divided in this way.
        """
        modules, self._has_models = dict(model.named_modules()), True
        self._seen.update(dict.fromkeys(f"{short(name)}" for name in modules if name))
        found = self._matching(modules)
        if self._is_auto:
            styles, left = auto.find(model, size)
            found.update(styles)
            self._left.update(dict.fromkeys(left))
        for name, style in found.items():
            if isinstance(style, str):
                refuse(model, name, style, size)
        runs = sequence.runs(model, found) if self._by_sequence else []
        inside = sequence.styles(model, found, [block for run in runs for block in run])
        said = {name: style for name, style in inside.items() if name not in found} | found
        self._said.update(
            dict.fromkeys(
                f"{name}: {style if isinstance(style, str) else type(style).__name__}"
                for name, style in common(said).items()
            )
        )
        whole = {
            name: STYLES[style] if isinstance(style, str) else style
            for name, style in found.items()
        }
        return whole | inside, runs

    def refuse_unused(self) -> None:
        """Raise UsageError if a pattern has matched no module of any model so far."""
        if not self._has_models:
            raise UsageError(
                "strategy='tp' has divided no model: it divides one when an optimizer gets its"
                " parameters, and none has. Make an optimizer before the first backward, or use"
                " strategy='ddp' for a loop that changes its parameters by hand"
            )
        unused = [pattern for pattern in self._patterns if pattern not in self._used]
        if unused:
            near = difflib.get_close_matches(unused[0], self._seen, 3, 0.0)
            raise UsageError(
                f"plan: {unused[0]!r} matches no module of the models that are trained. The nearest"
                f" names are {', '.join(near) or 'none'}; * stands for one word between dots"
            )
        if self._is_auto and not self._said:
            raise UsageError(
                "plan='auto' found no attention and no MLP that it knows in the models that are"
                f" trained ({'; '.join(self._left) or 'no names and shapes fit'}). Name the"
                " modules: plan={'blocks.*.up': 'colwise', 'blocks.*.down': 'rowwise'}"
            )

    def lines(self) -> list[str]:
        """What ``explain()`` says: each name and its style, and what "auto" has left whole."""
        return [*self._said, *(f"left whole: {line}" for line in self._left)]

    def _matching(self, modules: Mapping[str, Module]) -> dict[str, str | ParallelStyle]:
        found: dict[str, str | ParallelStyle] = {}
        for pattern, style in self._patterns.items():
            names = [name for name in modules if name and matches(name, pattern)]
            found |= dict.fromkeys(names, style)
            self._used |= {pattern} if names else set()
        return found


def matches(name: str, pattern: str) -> bool:
    """Whether each word of a dotted name matches that of the pattern.

    >>> matches("blocks.3.mlp.up", "blocks.*.mlp.up"), matches("blocks.3.mlp", "blocks.*")
    (True, False)
    """
    words, wanted = name.split("."), pattern.split(".")
    return len(words) == len(wanted) and all(map(fnmatchcase, words, wanted))


def refuse(model: Module, name: str, style: str, size: int) -> None:
    """Raise UsageError if a module can't be divided over ``size`` ranks, by "colwise" or "rowwise".

    Its features, and the heads of an attention that it feeds, must be divisible.
    """
    module, kind = model.get_submodule(name), type(model).__name__
    if not isinstance(module, DIVIDED):
        raise UsageError(
            f"plan: {kind}.{name} is {type(module).__name__}, and {style!r} divides Linear and"
            " Embedding. Name a layer inside it, or use a ParallelStyle of torch"
        )
    features = auto.features(module)[style == "rowwise"]
    if features % size:
        what = "in_features" if style == "rowwise" else "out_features"
        raise UsageError(
            f"plan: {kind}.{name} has {what} {features}, which {size} ranks can't divide evenly:"
            " choose a tp that does, or leave it out of the plan"
        )
    parent = model.get_submodule(name.rpartition(".")[0])
    heads = auto.heads(parent) if name.rpartition(".")[2] in auto.PROJECTIONS else None
    if heads and heads % size:
        raise UsageError(
            f"plan: {kind}.{name} feeds {heads} heads, which {size} ranks can't divide evenly:"
            " choose a tp that does, or leave the attention out of the plan"
        )


def _check(pattern: object, style: object) -> None:
    if not isinstance(pattern, str) or not isinstance(style, (str, ParallelStyle)):
        raise UsageError(f"plan={{{pattern!r}: {style!r}}}: {USAGE}")
    if isinstance(style, str) and style not in STYLES:
        raise UsageError(
            f"plan: style {style!r} of {pattern!r} is unknown: use 'colwise', 'rowwise' or a"
            " ParallelStyle of torch"
        )
