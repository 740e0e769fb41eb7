"""``plan="auto"``: attention and MLPs, found by the names and shapes of their layers.

An MLP has one or two layers up and one down. An attention has layers for queries, keys and values,
and one for its output. The layers up are divided by columns, the last by rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn import Module

from torchbus_tensor_parallel.plans.names import short

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
OWN_PLAN = "tp_plan"
"""Where models of transformers say how their layers may be divided."""


def find(model: Module, size: int) -> tuple[dict[str, str], list[str]]:
    """The styles of modules, by name, and sentences about parts that are left whole."""
    found: dict[str, str] = {}
    left: dict[str, None] = {}
    for name, part in model.named_modules():
        prefix = f"{name}." if name else ""
        found |= {f"{prefix}{one}": style for one, style in _own_plan(part, size).items()}
    for name, part in model.named_modules():
        prefix = f"{name}." if name else ""
        for up, down in _pairs(part, size):
            found |= {f"{prefix}{one}": "colwise" for one in up} | {f"{prefix}{down}": "rowwise"}
        reason = "" if any(f"{prefix}{one}" in found for one in FUSED) else _whole(part, size)
        if reason:
            left[f"{short(name) or type(model).__name__}: {reason}"] = None
    return found, list(left)


def features(layer: Module) -> tuple[int, int]:
    """How many numbers come out of a Linear or Embedding, and how many (or which words) go in."""
    if isinstance(layer, nn.Embedding):
        return layer.embedding_dim, layer.num_embeddings
    assert isinstance(layer, nn.Linear)
    return layer.out_features, layer.in_features


def heads(attention: Module) -> int:
    """The number of heads that a module or its config names, of keys if these have fewer; 0 if
    neither does.
    """
    config = getattr(attention, "config", None)
    named = ((getattr(one, name, None), name) for one in (attention, config) for name in HEADS_OF)
    found = {name: value for value, name in named if isinstance(value, int) and value > 0}
    return next((found[name] for name in HEADS_OF if name in found), 0)


def _pairs(part: Module, size: int) -> Iterator[tuple[tuple[str, ...], str]]:
    """The layers of a part that are divided by columns, and the one by rows."""
    layers = {name: one for name, one in part.named_children() if type(one) is nn.Linear}
    for up, down in MLPS:
        if {*up, down} <= layers.keys() and _fits(layers, up, down, size):
            yield up, down
            break
    for qkv, out in ((qkv, out) for qkv in QKV for out in OUT):
        if {*qkv, out} <= layers.keys() and _fits(layers, qkv[:1], out, size):
            same = layers[qkv[1]].out_features == layers[qkv[2]].out_features
            if same and heads(part) and heads(part) % size == 0:
                yield qkv, out
                break


def _own_plan(model: Module, size: int) -> dict[str, str]:
    """The parts that a model's own plan divides by columns, then by rows, and in no other way."""
    plan = getattr(model, OWN_PLAN, None)
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
            features(layers[name])[one == "rowwise"] % size == 0 for name, one in styles.items()
        )
        and heads(model.get_submodule(parent)) % size == 0
        for name, style in styles.items()
    }


def _fits(layers: dict[str, nn.Linear], up: tuple[str, ...], down: str, size: int) -> bool:
    inner = {layers[name].out_features for name in up}
    return inner == {layers[down].in_features} and not layers[down].in_features % size


def _whole(part: Module, size: int) -> str:
    """Why a part that looks like an attention is left whole, or ""."""
    children = dict(part.named_children())
    if isinstance(part, nn.MultiheadAttention):
        return "MultiheadAttention computes queries, keys and values in one layer"
    fused = [name for name in FUSED if name in children]
    if fused and heads(part):
        return f"{fused[0]} computes queries, keys and values in one layer"
    if any(set(names) <= children.keys() for names in QKV) and not any(
        set(up) & PROJECTIONS for up, _ in _pairs(part, size)
    ):
        number = heads(part)
        if not children.keys() & {*OUT}:
            return (
                f"no layer for its output is beside its queries, keys and values ({', '.join(OUT)})"
            )
        if not number:
            return f"the attention does not say how many heads it has ({', '.join(HEADS)})"
        return f"{size} ranks can't divide its layers, or its {number} heads, evenly"
    return ""
