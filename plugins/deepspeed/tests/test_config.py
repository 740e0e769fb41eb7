"""A config is read and checked before any rank starts, or before the first step."""

from __future__ import annotations

import importlib.metadata
import json
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from torchbus.errors import UsageError

from torchbus_deepspeed import _compat
from torchbus_deepspeed.strategy import DeepSpeed, Stage2, Stage2Offload, Stage3Offload

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")


def test_a_dict_a_path_and_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    assert DeepSpeed().config.stage == 2
    assert DeepSpeed(config={"zero_optimization": {"stage": 1}}).config.stage == 1
    assert DeepSpeed(config=path).config.stage == DeepSpeed(config=str(path)).config.stage == 3
    monkeypatch.setenv("DEEPSPEED_CONFIG", str(path))
    assert DeepSpeed().config.stage == 3


def test_names_with_offload():
    assert Stage2Offload().config.describe() == "; optimizer states in cpu memory"
    assert "parameters in cpu memory" in Stage3Offload().config.describe()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (3, "config is an int: pass a dict"),
        ("missing.json", "can't be read"),
        ({"zero_optimisation": {}}, "did you mean 'zero_optimization'"),
        ({"zero_optimization": 2}, "zero_optimization is an int; it must be an object"),
        ({"zero_optimization": {"stage": 4}}, "it must be 0, 1, 2 or 3"),
        ({"scheduler": {}}, "which has no effect here: the loop makes its own scheduler"),
        (
            {"activation_checkpointing": {"partition_activations": True}},
            r"partition_activations=True has no effect here.* activation_checkpointing='auto'",
        ),
        (
            {"activation_checkpointing": {"cpu_checkpoint": True}},
            "unknown key 'cpu_checkpoint' .did you mean 'cpu_checkpointing'",
        ),
        ({"activation_checkpointing": True}, "activation_checkpointing is a bool; it must be"),
        ({"bf16": True}, "bf16 is True; it must be an object, such as"),
        ({"gradient_clipping": "1.0"}, "gradient_clipping='1.0': it must be a norm"),
        ({"train_batch_size": 0}, "train_batch_size=0: it must be a whole number from 1"),
        (
            {"zero_optimization": {"offload_optimizer": "cpu"}},
            "offload_optimizer is 'cpu'; it must be an object",
        ),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "disk"}}},
            "offload_optimizer.device='disk': it must be one of none, cpu, nvme",
        ),
    ],
)
def test_a_config_that_can_not_hold(config, words):
    with pytest.raises(UsageError, match=words):
        DeepSpeed(config=config)


NVME = {"device": "nvme", "nvme_path": "/local_nvme"}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"bf16": {"enable": True}}, "bf16 has an unknown key 'enable' .did you mean 'enabled'"),
        (
            {"zero_optimization": {"offload_param": {"devices": "cpu"}, "stage": 3}},
            "offload_param has an unknown key 'devices'",
        ),
        (
            {"zero_optimization": {"offload_param": {"device": "cpu"}}},
            "offload_param needs zero_optimization.stage=3, not 2",
        ),
        ({"zero_optimization": {"offload_optimizer": NVME}}, "needs DeepSpeed's async_io"),
        ({"zero_optimization": {"offload_param": NVME, "stage": 3}}, "needs DeepSpeed's async_io"),
    ],
)
def test_what_the_installed_release_does_not_have(monkeypatch, config, words):
    monkeypatch.setattr(_compat, "has_async_io", lambda: False)
    session = SimpleNamespace(options={}, device=torch.device("cpu"))
    with pytest.raises(UsageError, match=words):
        DeepSpeed(config=config).config.check(session)


HUGGING_FACE = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
    "activation_checkpointing": {"partition_activations": False, "number_checkpoints": None},
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
    "steps_per_print": 2000,
    "wall_clock_breakdown": False,
}
"""The shape of the configs that transformers documents."""


def test_auto_is_filled_from_the_loop():
    config = DeepSpeed(config=HUGGING_FACE).config
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    session = SimpleNamespace(options={"precision": "bf16-true"}, device=torch.device("cpu"))
    config.check(session)
    config.optimizer.check(optimizer)
    filled = config.of_engine(optimizer, model, session)
    assert "auto" not in json.dumps(filled) and config.clip == 0.0
    assert filled["bf16"] == {"enabled": True} and "enabled" not in filled["fp16"]
    assert filled["zero_optimization"]["reduce_bucket_size"] == 20
    assert filled["zero_optimization"]["stage3_prefetch_bucket_size"] == 16


def test_no_json(tmp_path):
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(UsageError, match="is not valid JSON"):
        DeepSpeed(config=tmp_path / "c.json")


def test_a_stage_in_the_name_and_another_in_the_config():
    with pytest.raises(UsageError, match="'deepspeed_stage_2', and config says .*stage=3"):
        Stage2(config={"zero_optimization": {"stage": 3}})


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        (
            {"gradient_clipping": 1.0},
            {"gradient_clip_val": 0.5},
            "gradient_clip_val=0.5, and config says gradient_clipping=1.0",
        ),
        (
            {"gradient_accumulation_steps": 4},
            {},
            "accumulate_grad_batches=1, and config says gradient_accumulation_steps=4",
        ),
        (
            {"bf16": {"enabled": True}},
            {"precision": "bf16-mixed"},
            "precision='bf16-mixed', and config says bf16.enabled=True",
        ),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, {}, "both bf16 and fp16"),
        ({}, {"precision": "16-mixed"}, "'16-mixed' under DeepSpeed"),
    ],
)
def test_contradictions_name_both_values(config, options, words):
    session = SimpleNamespace(options=options, device=torch.device("cpu"))
    with pytest.raises(UsageError, match=words):
        DeepSpeed(config=config).config.check(session)


def test_batch_sizes_that_are_not_the_loops():
    config = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": "auto"}
    DeepSpeed(config=config).config.check_batch(16, 2, 2)
    with pytest.raises(
        UsageError, match="16 samples per step, and config says train_batch_size=64"
    ):
        DeepSpeed(config={"train_batch_size": 64}).config.check_batch(16, 2, 1)


def test_unknown_keys_of_zero_optimization():
    session = SimpleNamespace(options={}, device=torch.device("cpu"))
    words = "config: zero_optimization has an unknown key 'reduce_bucket' .did you mean 'reduce_bu"
    with pytest.raises(UsageError, match=words):
        DeepSpeed(config={"zero_optimization": {"reduce_bucket": 1}}).config.check(session)


@pytest.mark.parametrize(
    ("found", "words"), [(None, "is not installed"), ("0.18.3", "0.18.3 is installed")]
)
def test_deepspeed_is_missing_or_too_old(monkeypatch, found, words):
    def version(name: str) -> str:
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr("torchbus_deepspeed.config.version", version)
    with pytest.raises(UsageError, match=words):
        DeepSpeed()
