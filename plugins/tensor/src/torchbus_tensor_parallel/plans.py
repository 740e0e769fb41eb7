"""Parses the plan: which modules are divided, and how."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TypeVar

from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
)
from torch.nn import Module
from torchbus.plugin import UsageError, expect

PlanOption = Mapping[str, "str | ParallelStyle"] | str
PLAN_STYLES: dict[str, ParallelStyle] = {
    # tensors between the layers are DTensors, so what the loop does with them is unambiguous
    "colwise": ColwiseParallel(use_local_output=False),
    "rowwise": RowwiseParallel(input_layouts=Replicate()),
}
USAGE = (
    "pass plan='auto', or a dict from names of modules to 'colwise', 'rowwise' or a ParallelStyle"
    " of torch, such as plan={'blocks.*.up': 'colwise', 'blocks.*.down': 'rowwise'}"
)
DIVIDED = (nn.Linear, nn.Embedding)


class ModulePlan:
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
        """Return the styles of the model's modules, by name, for ``size`` ranks.

        Also returns the blocks inside which the sequence is divided, in lists of consecutive
        blocks. Raises UsageError if a module can't be divided in this way.
        """
        modules, self._has_models = dict(model.named_modules()), True
        self._seen.update(dict.fromkeys(f"{short(name)}" for name in modules if name))
        found = self._matching(modules)
        if self._is_auto:
            styles, left = find(model, size)
            found.update(styles)
            self._left.update(dict.fromkeys(left))
        for name, style in found.items():
            if isinstance(style, str):
                refuse(model, name, style, size)
        runs = sequence_runs(model, found) if self._by_sequence else []
        inside = sequence_styles(model, found, [block for run in runs for block in run])
        said = {name: style for name, style in inside.items() if name not in found} | found
        self._said.update(
            dict.fromkeys(
                f"{name}: {style if isinstance(style, str) else type(style).__name__}"
                for name, style in common(said).items()
            )
        )
        whole = {
            name: PLAN_STYLES[style] if isinstance(style, str) else style
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
        """Return the lines of ``explain()``: names with styles, and what "auto" has left whole."""
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
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


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
    features = auto_features(module)[style == "rowwise"]
    if features % size:
        what = "in_features" if style == "rowwise" else "out_features"
        raise UsageError(
            f"plan: {kind}.{name} has {what} {features}, which {size} ranks can't divide evenly:"
            " choose a tp that does, or leave it out of the plan"
        )
    parent = model.get_submodule(name.rpartition(".")[0])
    heads = auto_heads(parent) if name.rpartition(".")[2] in PROJECTIONS else None
    if heads and heads % size:
        raise UsageError(
            f"plan: {kind}.{name} feeds {heads} heads, which {size} ranks can't divide evenly:"
            " choose a tp that does, or leave the attention out of the plan"
        )


def _check(pattern: object, style: object) -> None:
    if not isinstance(pattern, str) or not isinstance(style, (str, ParallelStyle)):
        raise UsageError(f"plan={{{pattern!r}: {style!r}}}: {USAGE}")
    if isinstance(style, str) and style not in PLAN_STYLES:
        raise UsageError(
            f"plan: style {style!r} of {pattern!r} is unknown: use 'colwise', 'rowwise' or a"
            " ParallelStyle of torch"
        )


MLPS = (
    (("gate_proj", "up_proj"), "down_proj"),
    (("w1", "w3"), "w2"),
    (("up",), "down"),
    (("up_proj",), "down_proj"),
    (("fc1",), "fc2"),
    (("c_fc",), "c_proj"),
    (("linear1",), "linear2"),
    (("lin1",), "lin2"),
    (("dense_h_to_4h",), "dense_4h_to_h"),
)
QKV = (
    ("q_proj", "k_proj", "v_proj"),
    ("q", "k", "v"),
    ("wq", "wk", "wv"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
)
OUT = ("o_proj", "out_proj", "o", "wo", "out", "out_lin", "proj", "c_proj")
FUSED = ("c_attn", "qkv", "in_proj", "query_key_value", "Wqkv", "qkv_proj")
PROJECTIONS = {name for names in QKV for name in names}
HEADS = ("n_head", "n_heads", "num_heads", "num_attention_heads", "nhead", "heads")
KEY_HEADS = ("n_kv_heads", "num_key_value_heads", "num_kv_heads", "n_kv_head")
HEADS_OF = (*KEY_HEADS, *HEADS)
LOCAL_PLAN = "tp_plan"
"""The attribute in which models of transformers say how their layers may be divided."""


def find(model: Module, size: int) -> tuple[dict[str, str], list[str]]:
    """Return the styles of modules, by name, and sentences about parts that are left whole."""
    found: dict[str, str] = {}
    left: dict[str, None] = {}
    for name, part in model.named_modules():
        prefix = f"{name}." if name else ""
        found |= {f"{prefix}{one}": style for one, style in _local_plan(part, size).items()}
    for name, part in model.named_modules():
        prefix = f"{name}." if name else ""
        for up, down in _pairs(part, size):
            found |= {f"{prefix}{one}": "colwise" for one in up} | {f"{prefix}{down}": "rowwise"}
        reason = "" if any(f"{prefix}{one}" in found for one in FUSED) else _whole(part, size)
        if reason:
            left[f"{short(name) or type(model).__name__}: {reason}"] = None
    return found, list(left)


def auto_features(layer: Module) -> tuple[int, int]:
    """Return the numbers of output and input features of a Linear; of an Embedding, its features
    and its number of words.
    """
    if isinstance(layer, nn.Embedding):
        return layer.embedding_dim, layer.num_embeddings
    assert isinstance(layer, nn.Linear)
    return layer.out_features, layer.in_features


def auto_heads(attention: Module) -> int:
    """Return the number of heads that a module or its config names, or 0.

    If both name heads of keys and of queries, it is the number for keys.
    """
    config = getattr(attention, "config", None)
    named = ((getattr(one, name, None), name) for one in (attention, config) for name in HEADS_OF)
    found = {name: value for value, name in named if isinstance(value, int) and value > 0}
    return next((found[name] for name in HEADS_OF if name in found), 0)


def _pairs(part: Module, size: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the layers of a part to divide by columns, with the one to divide by rows."""
    layers = {name: one for name, one in part.named_children() if type(one) is nn.Linear}
    for up, down in MLPS:
        if {*up, down} <= layers.keys() and _fits(layers, up, down, size):
            yield up, down
            break
    for qkv, out in ((qkv, out) for qkv in QKV for out in OUT):
        if {*qkv, out} <= layers.keys() and _fits(layers, qkv[:1], out, size):
            same = layers[qkv[1]].out_features == layers[qkv[2]].out_features
            if same and auto_heads(part) and auto_heads(part) % size == 0:
                yield qkv, out
                break


def _local_plan(model: Module, size: int) -> dict[str, str]:
    """Return the layers in parts that a model's plan divides by columns and by rows only."""
    plan = getattr(model, LOCAL_PLAN, None)
    if not isinstance(plan, dict):
        return {}
    found: dict[str, dict[str, str]] = {}
    layers = {name: one for name, one in model.named_modules() if type(one) is nn.Linear}
    for name in layers:
        style = next((plan[one] for one in (short(name), name) if one in plan), None)
        if style is not None:
            found.setdefault(name.rpartition(".")[0], {})[name] = style
    return {
        name: style
        for parent, styles in found.items()
        if {*styles.values()} == {"colwise", "rowwise"}
        and all(
            auto_features(layers[name])[one == "rowwise"] % size == 0
            for name, one in styles.items()
        )
        and auto_heads(model.get_submodule(parent)) % size == 0
        for name, style in styles.items()
    }


def _fits(layers: dict[str, nn.Linear], up: tuple[str, ...], down: str, size: int) -> bool:
    inner = {layers[name].out_features for name in up}
    return inner == {layers[down].in_features} and not layers[down].in_features % size


def _whole(part: Module, size: int) -> str:
    """Return why a part that looks like an attention is left whole, or ""."""
    children = dict(part.named_children())
    if isinstance(part, nn.MultiheadAttention):
        return "MultiheadAttention computes queries, keys and values in one layer"
    fused = [name for name in FUSED if name in children]
    if fused and auto_heads(part):
        return f"{fused[0]} computes queries, keys and values in one layer"
    if any(set(names) <= children.keys() for names in QKV) and not any(
        set(up) & PROJECTIONS for up, _ in _pairs(part, size)
    ):
        number = auto_heads(part)
        if not children.keys() & {*OUT}:
            return (
                f"no layer for its output is beside its queries, keys and values ({', '.join(OUT)})"
            )
        if not number:
            return f"the attention does not say how many heads it has ({', '.join(HEADS)})"
        return f"{size} ranks can't divide its layers, or its {number} heads, evenly"
    return ""


T = TypeVar("T")


def short(name: str) -> str:
    """Return a name with ``*`` for each number.

    >>> short("blocks.11.mlp.up")
    'blocks.*.mlp.up'
    """
    return ".".join("*" if word.isdigit() else word for word in name.split("."))


def common(named: Mapping[str, T]) -> dict[str, T]:
    """Merge the entries of names that differ only in numbers, if their values are the same."""
    found: dict[str, T] = {}
    for name, value in named.items():
        key = short(name)
        found[name if key in found and found[key] is not value else key] = value
    return found


SEQUENCE = 1
SEQUENCE_STYLES: dict[str, ParallelStyle] = {
    "colwise": ColwiseParallel(input_layouts=Shard(SEQUENCE), use_local_output=False),
    "rowwise": RowwiseParallel(output_layouts=Shard(SEQUENCE), use_local_output=False),
}
NORM = SequenceParallel(sequence_dim=SEQUENCE)
NORMS = ("layernorm", "rmsnorm")


def sequence_runs(model: Module, planned: Mapping[str, object]) -> list[list[str]]:
    """Return lists of the names of consecutive blocks.

    Raises UsageError if there are none, but layers of the plan.
    """
    found = [run for name in _lists(model) for run in _runs(model, name, planned)]
    if planned and not found:
        raise UsageError(
            f"sequence_parallel=True: no nn.ModuleList or nn.Sequential of {type(model).__name__}"
            " has blocks with layers of the plan. Leave it out"
        )
    return found


def sequence_styles(
    model: Module, planned: Mapping[str, str | ParallelStyle], blocks: list[str]
) -> dict[str, ParallelStyle]:
    """Return the styles of all modules with parameters inside the blocks.

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
    """Return the names of the outermost lists of modules."""
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
        return SEQUENCE_STYLES[style]
    raise UsageError(
        f"sequence_parallel=True: {type(model).__name__}.{path} is in a block, and there the plan"
        " may name Linear layers, by 'colwise' or 'rowwise'. Change the plan, or leave"
        " sequence_parallel out"
    )


def _refuse_unless_norm(model: Module, path: str, module: Module) -> None:
    if not type(module).__name__.lower().endswith(NORMS):
        raise UsageError(
            f"sequence_parallel=True: {type(model).__name__}.{path} ({type(module).__name__})"
            " has parameters and is not a LayerNorm or RMSNorm, and it would see a part of the"
            " sequence: name it in the plan, or leave sequence_parallel out"
        )
