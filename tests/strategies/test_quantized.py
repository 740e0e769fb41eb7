"""Adapters beside quantised layers under strategies, and in checkpoints: torchbus-quantize."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from torchbus_testing.forking import ForkServer

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = [
    pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed"),
    pytest.mark.timeout(300),
]
ROUNDING = {"nf4": 1e-12, "int8": 2e-6}  # torchao's int8 scales are float32


@pytest.fixture(scope="module")
def server():
    """Has imported torchao, which takes seconds."""
    with ForkServer("torchao.quantization") as one:
        yield one


def run(server, strategy, ranks, name, library="torchao", batch_size=None, **options):
    size = batch_size or 6 // ranks
    words = json.dumps([strategy, ranks, size, name, library, options])
    return server.run(SCRIPTS / "quantized.py", words, timeout_s=200).json()


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("strategy", "ranks", "name", "options"),
    [
        ("ddp", 2, "nf4", {}),
        ("fsdp", 3, "nf4", {}),
        slow("fsdp", 2, "int8", {}),
        slow("ddp", 3, "int8", {}),
        slow("fsdp", 2, "nf4", {"gradient_clip_val": 1e9}),
        slow("fsdp", 2, "nf4", {"reshard_after_forward": False}),
        slow("fsdp", 2, "nf4", {"activation_checkpointing": "auto"}),
        slow("ddp_sharded", 2, "nf4", {}),
        slow("dp", 2, "nf4", {}),
        slow("pipeline", 2, "nf4", {}),
    ],
)
def test_n_ranks_are_one_process(server, strategy, ranks, name, options):
    """Six samples a step, five in the last one: the ranks' shares of it differ."""
    whole = {"dp": 6, "pipeline": 6}.get(strategy)
    found = run(server, strategy, ranks, name, batch_size=whole, **options)
    assert found["apart"] < ROUNDING[name], found
    assert f"frozen layers in {name} by torchao" in found["told"]
    assert found["dtypes"] == ["torch.uint8"]
    assert found["ranks_alike"]


def test_fsdp_divides_the_bytes(server):
    found = run(server, "fsdp", 3, "nf4")
    assert found["whole"] / 3 <= found["here"] <= found["whole"] / 3 + 4


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "name"), [("fsdp", "nf4"), ("ddp", "int8")])
def test_by_bitsandbytes(server, strategy, name):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    found = run(server, strategy, 3, name, "bitsandbytes")
    assert found["apart"] < 2e-6, found  # in float32: it has no kernels for float64


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", ["deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3"]
)
def test_under_deepspeed(server, strategy):
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    found = run(server, strategy, 2, "nf4")
    assert found["apart"] < 2e-6, found  # its steps are in float32


@pytest.mark.slow
def test_layers_that_tp_divides_are_refused(server):
    words = json.dumps(["tp", 2, 6, "nf4", "torchao", {"plan": {"*.a": "colwise"}}])
    result = server.run(SCRIPTS / "quantized.py", words, timeout_s=200)
    assert result.ok(1)
    assert "quantize='nf4' with strategy='tp'" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"sharded_save": True}], ids=["whole", "in parts"])
def test_a_run_goes_on_with_other_ranks(server, options, tmp_path):
    pytest.importorskip("torchbus_checkpoint")
    script = SCRIPTS / "quantized_checkpoint.py"
    first = json.dumps(["fsdp", 2, "first", options])
    assert server.run(script, first, cwd=tmp_path, timeout_s=200).ok()
    second = json.dumps(["ddp", 3, "second", {}])
    result = server.run(script, second, cwd=tmp_path, timeout_s=200)
    assert result.ok() and float(result.stdout) < ROUNDING["nf4"]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("fsdp", 2)])
def test_adapters_of_peft(server, strategy, ranks, tmp_path):
    """In float32, as transformers makes its models."""
    pytest.importorskip("peft", reason="peft is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    script = SCRIPTS / "quantized_peft.py"
    found = server.run(script, strategy, ranks, cwd=tmp_path, timeout_s=250).json()
    assert found["apart"] < 2e-6 < 1e-3 < found["moved"], found
    assert found["loaded"] < 2e-6 and found["merged"] < 1e-5, found
    assert "weights of 15 frozen layers in nf4 by torchao" in found["told"]
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert "adapter_model.safetensors" in files


def test_weights_that_are_to_be_trained_later(server):
    """Before any rank starts."""
    words = json.dumps(["ddp", 2, 6, "nf4", "torchao", {"unfreeze": {"blocks": 3}}])
    result = server.run(SCRIPTS / "quantized.py", words)
    assert result.ok(1)
    assert (
        "quantize='nf4' with unfreeze=...: quantised weights can't be trained later. Leave one of"
        " them out"
    ) in result.stderr
