"""Layers divided over ranks, against one process that knows nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchbus_testing.forking import fork_script

SCRIPTS = Path(__file__).parent / "scripts"
ROUNDING = 1e-12
QUICK_MODELS = ("nanogpt", "encoder", "llama", "own")


def facts(script: str, *arguments: object) -> dict[str, Any]:
    return dict(fork_script(SCRIPTS / script, *arguments, timeout_s=240).json())


@pytest.mark.parametrize(
    ("ranks", "tp", "width"),
    [
        pytest.param(2, 2, 12, marks=pytest.mark.slow),
        pytest.param(3, 3, 8, marks=pytest.mark.slow),
        (4, 2, 12),
    ],
)
def test_the_numbers_of_one_process(ranks, tp, width):
    """Losses, norms, evaluation, parameters: SGD, AdamW, two groups, a ragged last batch."""
    found = facts("numbers_mlp.py", ranks, tp)
    for kind in ("sgd", "adamw"):
        difference, ranks_agree, part = found[kind]
        assert difference < ROUNDING and ranks_agree and part == width
        assert found[f"{kind} losses"] < ROUNDING
        assert found[f"{kind} after"] < ROUNDING and found[f"{kind} plain"]


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_transformer_with_dropout_draws_what_one_process_draws(ranks):
    found = facts("numbers_gpt.py", ranks)
    for name in ("kernel", "formula", "dropout", "dropout in the kernel"):
        assert found[name][0] < ROUNDING and found[name][1] and found[f"{name} losses"] < ROUNDING
    assert found["drops"] > 1e-3
    text = " ".join(found["explain"].split())
    assert f"tp over gloo: {ranks} ranks share each layer of the plan; all see each batch" in text
    assert "plan blocks.*.attn.q: colwise" in text and "blocks.*.down: rowwise" in text
    assert f"12 layers divided over {ranks} ranks" in text


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["tp", "fsdp"])
def test_windows_clipping_and_logged_values(strategy):
    found = facts("windows.py", strategy)
    for name in ("accumulate_grad_batches", "gradient_clip_val", "own window", "no_sync"):
        assert found[name] < ROUNDING, name
    assert [found["logged"]["mean"], found["logged"]["sum"]] == pytest.approx(found["expected"])


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "part"), [("tp", 0.5), ("fsdp", 0.25)])
def test_states_are_whole_and_checkpoints_go_on_elsewhere(strategy, part, tmp_path):
    found = facts("states.py", tmp_path, strategy)
    assert found["model"][0] < ROUNDING and found["model"][1]
    assert found["optimizer"] < ROUNDING and found["loaded"] == 0.0
    assert found["part of the state"] == part
    assert found["2 to 3"] < ROUNDING
    assert found["2x2 to ddp"] < ROUNDING and found["ddp to 2x2"] < ROUNDING


@pytest.mark.slow
def test_auto_finds_attention_and_mlps():
    found = facts("auto.py")
    assert all(found[name] < ROUNDING for name in QUICK_MODELS)
    plans = {name: " ".join(" ".join(found[f"{name} plan"]).split()) for name in QUICK_MODELS}
    assert "*.mlp.c_fc: colwise *.mlp.c_proj: rowwise" in plans["nanogpt"]
    assert "left whole: *.attn: c_attn computes queries, keys and values" in plans["nanogpt"]
    assert "layers.*.linear1: colwise layers.*.linear2: rowwise" in plans["encoder"]
    assert "left whole: layers.*.self_attn: MultiheadAttention computes" in plans["encoder"]
    assert "*.gate_proj: colwise *.up_proj: colwise *.down_proj: rowwise" in plans["llama"]
    assert "*.q_proj: colwise" in plans["llama"] and "*.o_proj: rowwise" in plans["llama"]
    assert "*.attn.q: colwise" in plans["own"] and "*.attn.o: rowwise" in plans["own"]


REFUSALS = {
    "no module": "'blocks.*.upp' matches no module of the models that are trained. The nearest"
    " names are blocks.*.up,",
    "features": "Mlp.first has in_features 5, which 2 ranks can't divide evenly",
    "kind": "Mlp.blocks.0.norm is LayerNorm, and 'colwise' divides Linear and Embedding",
    "heads": "Gpt.blocks.0.attn.q feeds 6 heads, which 4 ranks can't divide evenly",
    "shared": "words.weight is the same tensor as head.weight",
    "style": "style 'diagonal' of 'last' is unknown",
    "type": "plan=['last']: pass plan='auto', or a dict",
    "value": "plan={'last': 3}: pass plan='auto', or a dict",
    "tp": "tp=2 with 3 ranks: ranks form groups of tp ranks",
    "tp type": "tp='two': say how many ranks share a layer",
    "auto": "plan='auto' found no attention and no MLP that it knows",
    "auto heads": "the attention does not say how many heads it has",
    "dropout": "'blocks.0.up' hands its shards on as plain tensors",
    "hooks": "parameter hooks on Hooked.blocks.0.up.weight",
    "lbfgs": "strategy='tp' with LBFGS: its step looks at all parameters together",
    "grad": "torch.autograd.grad for divided parameters under strategy='tp'",
    "create_graph": "backward(create_graph=True) under strategy='tp'",
    "by heads": "queries of shape (1, 2, 4, 6) are divided as",
    "by hand": "UsageError: strategy='tp' has divided no model: it divides one when an optimizer",
    "wrapped later": "Unsupported: 0.weight of Sequential is divided already, for another model",
    "not offered": "(whole.fmod_(model.blocks[0].up.weight.detach())) computes with a divided",
    "pickled": "Unsupported: pickling Mlp under strategy='tp' (torch.save(model), or a process",
    "by parameter": "a dict has no entry for a parameter that strategy='tp' has divided",
    "losses": "the ranks of a tensor group had different losses",
}


@pytest.fixture(scope="module")
def refused() -> dict[str, Any]:
    return facts("refused.py")


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_is_refused_before_the_first_step(refused, name):
    assert REFUSALS[name] in refused[name]


def test_names_match_word_by_word():
    from torchbus_tensor_parallel.plans import matches

    assert matches("blocks.3.mlp.up", "blocks.*.mlp.up")
    assert not matches("blocks.3.mlp", "blocks.*") and not matches("up", "*.up")


def test_torch_objects_and_floats_of_32_bits():
    found = facts("objects.py")
    assert found["objects"] < ROUNDING and found["float32"] < 1e-6
    assert found["frozen"] and found["item"] < ROUNDING
