"""``strategy="accelerate"``: a plain loop on the ranks that a file of `accelerate config` describes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from torchbus import session
from torchbus.errors import UsageError

from torchbus_accelerate import Accelerate
from torchbus_testing.forking import fork_script

LOOP = Path(__file__).parent / "scripts" / "by_config.py"
# as `accelerate config` writes them
CPU: dict[str, Any] = yaml.safe_load("""
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_CPU
downcast_bf16: 'no'
dynamo_backend: 'NO'
enable_cpu_affinity: false
machine_rank: 0
main_training_function: main
mixed_precision: 'no'
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: true
""")
VERSION_1: dict[str, Any] = yaml.safe_load("""
fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
fsdp_backward_prefetch: BACKWARD_PRE
fsdp_cpu_ram_efficient_loading: true
fsdp_forward_prefetch: false
fsdp_offload_params: false
fsdp_reshard_after_forward: FULL_SHARD
fsdp_state_dict_type: FULL_STATE_DICT
fsdp_sync_module_states: true
fsdp_transformer_layer_cls_to_wrap: Linear, Tanh
fsdp_use_orig_params: true
fsdp_version: 1
""")
VERSION_2: dict[str, Any] = yaml.safe_load("""
fsdp_activation_checkpointing: false
fsdp_auto_wrap_policy: SIZE_BASED_WRAP
fsdp_cpu_ram_efficient_loading: true
fsdp_min_num_params: 10
fsdp_offload_params: false
fsdp_reshard_after_forward: false
fsdp_state_dict_type: SHARDED_STATE_DICT
fsdp_version: 2
""")
ZERO: dict[str, Any] = yaml.safe_load("""
gradient_accumulation_steps: 2
gradient_clipping: 1.0
offload_optimizer_device: none
offload_param_device: none
zero3_init_flag: false
zero_stage: 2
""")


def fsdp(section: dict[str, Any]) -> dict[str, Any]:
    return {"distributed_type": "FSDP", "fsdp_config": section}


def deepspeed(section: dict[str, Any]) -> dict[str, Any]:
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": section}


def written(folder: Path, **more: Any) -> str:
    """Write a file, and return its path."""
    path = folder / f"config{len(list(folder.glob('*.yaml')))}.yaml"
    config = CPU | more
    path.write_text(yaml.safe_dump({key: one for key, one in config.items() if one is not None}))
    return str(path)


def run(*cases: Any) -> list[dict[str, Any]]:
    result = fork_script(LOOP, json.dumps(cases), timeout_s=240)
    assert result.ok(), result
    found: list[dict[str, Any]] = json.loads(result.stdout.split("found ")[1])
    return found


def test_ddp_and_fsdp_train_as_one_process(tmp_path: Path) -> None:
    there = {"checkpoint": str(tmp_path / "checkpoints"), "launch": "fork"}
    ddp, first, second, more, alone = run(
        (written(tmp_path), {"launch": "fork"}, 6, None, "float64"),
        (written(tmp_path, **fsdp(VERSION_1)), {"launch": "fork"}, 6, None, "float64"),
        (written(tmp_path, **fsdp(VERSION_2)), there, 6, None, "float64"),
        (written(tmp_path), {"devices": 3, "launch": "fork"}, 6, None, "float64"),
        (written(tmp_path, distributed_type="NO", num_processes=1), {}, 6, None, "float64"),
    )
    assert [one["ranks"] for one in (ddp, first, second, more, alone)] == [2, 2, 2, 3, 1]
    assert all(one["apart"] < 1e-12 for one in (ddp, first, second, more, alone))
    assert "says accelerator='cpu', devices=2, strategy='ddp'" in ddp["explained"]
    assert "fsdp over gloo" in first["explained"] and "in 3 units" in first["explained"]
    assert "released after its backward" in second["explained"]
    assert "sharded_save=True" in second["explained"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_deepspeed_and_mixed_precision(tmp_path: Path) -> None:
    """Two batches a step, and clipping: as one process with a batch of twice the size."""
    pytest.importorskip("deepspeed")
    config = tmp_path / "zero.json"
    config.write_text(json.dumps({"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}}))
    file = {"deepspeed_config_file": str(config)}
    bf16 = {"mixed_precision": "bf16"}
    zero, low, ddp, sharded = run(
        (written(tmp_path, **deepspeed(ZERO)), {"launch": "fork"}, 12, 1.0, ""),
        (written(tmp_path, **deepspeed(file), **bf16), {"launch": "fork"}, 6, None, "bf16"),
        (written(tmp_path, **bf16), {"launch": "fork"}, 6, None, "bf16"),
        (written(tmp_path, **fsdp(VERSION_2), **bf16), {"launch": "fork"}, 6, None, "bf16"),
    )
    assert zero["apart"] < 1e-6 and "ZeRO stage 2" in zero["explained"]
    assert low["apart"] < 0.1 and "ZeRO stage 1" in low["explained"]
    assert "model in bfloat16" in low["explained"]
    for one in (ddp, sharded):
        assert one["apart"] < 0.05 and "precision='bf16-mixed'" in one["explained"]
    assert "mixed_precision='bf16'" in sharded["explained"]


def options(folder: Path, config: dict[str, Any], **call: Any) -> dict[str, Any]:
    """Return the options that differ from those of a call without the strategy."""
    given = {"strategy": "accelerate", "devices": "auto", "accelerator": "auto", "num_nodes": 1}
    path = written(folder, **config)
    found = Accelerate.session_options({**given, **call, "accelerate_config": path})
    return {name: found[name] for name in found if found[name] != given.get(name)}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"distributed_type": "MULTI_GPU", "use_cpu": False, "num_processes": 4, "gpu_ids": "1,3,4,5"},
         {"accelerator": "gpu", "devices": [1, 3, 4, 5], "strategy": "ddp"}),
        ({"distributed_type": "NO", "use_cpu": False, "num_processes": None},
         {"devices": 1, "strategy": "auto"}),
        ({"num_processes": 8, "num_machines": 2, "mixed_precision": "fp16"},
         {"devices": 4, "num_nodes": 2, "precision": "16-mixed", "strategy": "ddp"}),
        (fsdp({"fsdp_reshard_after_forward": "HYBRID_SHARD_ZERO2", "fsdp_offload_params": True,
               "fsdp_activation_checkpointing": True}),
         {"hybrid": True, "reshard_after_forward": False, "cpu_offload": True,
          "activation_checkpointing": "auto", "auto_wrap_policy": None, "strategy": "fsdp"}),
        (fsdp({"fsdp_sharding_strategy": "NO_SHARD"}), {"strategy": "ddp"}),
        (deepspeed({"zero_stage": 3, "offload_param_device": "nvme",
                    "offload_param_nvme_path": "/disk"}),
         {"strategy": "deepspeed", "config": {"zero_optimization": {
             "stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/disk"}}}}),
    ],
)  # fmt: skip
def test_what_a_file_means(config: Any, expected: dict[str, Any], tmp_path: Path) -> None:
    found = options(tmp_path, config)
    assert {name: found.get(name) for name in expected} == expected
    more = {"devices", "accelerator", "accelerate_config", *expected}
    assert not found.keys() - more


def test_the_call_wins_over_the_file(tmp_path: Path) -> None:
    call = {"devices": 3, "accumulate_grad_batches": 4, "gradient_clip_val": 0.5}
    found = options(tmp_path, deepspeed(ZERO), **call)
    assert {name: found[name] for name in call} == call
    assert found["config"] == {"zero_optimization": {"stage": 2}}


REFUSED = {
    "distributed_type='MEGATRON_LM'": {"distributed_type": "MEGATRON_LM"},
    "distributed_type='XLA'": {"distributed_type": "XLA"},
    "mixed_precision='fp8'": {"mixed_precision": "fp8"},
    "dynamo_config={'dynamo_backend': 'INDUCTOR'}": {"dynamo_backend": "INDUCTOR"},
    "enable_cpu_affinity=True": {"enable_cpu_affinity": True},
    "mpirun_config={'mpirun_hostfile': 'hosts'}": {"mpirun_config": {"mpirun_hostfile": "hosts"}},
    "num_processes=3": {"num_processes": 3, "num_machines": 2},
    "parallelism_config={'parallelism_config_tp_size': 2}": {
        "parallelism_config": {"parallelism_config_tp_size": 2}
    },
    "fsdp_state_dict_type='LOCAL_STATE_DICT'": fsdp({"fsdp_state_dict_type": "LOCAL_STATE_DICT"}),
    "fsdp_auto_wrap_policy='MY_WRAP'": fsdp({"fsdp_auto_wrap_policy": "MY_WRAP"}),
    "fsdp_reshard_after_forward='SOME'": fsdp({"fsdp_reshard_after_forward": "SOME"}),
    "fsdp_limit=3": fsdp({"fsdp_limit": 3}),
    "zero3_init_flag=True": deepspeed({"zero_stage": 3, "zero3_init_flag": True}),
    "deepspeed_moe_layer_cls_names='Moe'": deepspeed({"deepspeed_moe_layer_cls_names": "Moe"}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_no_option_says_is_refused_by_its_name(words: str, tmp_path: Path) -> None:
    path = written(tmp_path, **REFUSED[words])
    with pytest.raises(UsageError) as error:
        session(strategy="accelerate", accelerate_config=path)
    assert f"{path}: {words} is not offered by strategy='accelerate': " in str(error.value)


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    unknown = written(tmp_path, num_procs=2)
    lost = deepspeed({"deepspeed_config_file": str(tmp_path / "lost.json")})
    for path, words in {
        str(tmp_path / "lost.yaml"): r"lost\.yaml, which does not exist: run `accelerate config`",
        unknown: r"can't be read: The config file .* had unknown keys \(\['num_procs'\]\)",
        written(tmp_path, **lost): r"lost\.json' can't be read: .*No such file",
    }.items():
        with pytest.raises(UsageError, match=words):
            session(strategy="accelerate", accelerate_config=path)
    with pytest.raises(UsageError, match=r"^accelerate_config='lost\.yaml' without strategy="):
        session(accelerate_config="lost.yaml")


def test_ranks_that_a_launcher_has_started_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`accelerate launch --num_processes 4` with a file that says 2."""
    place = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    found = options(tmp_path, {"num_machines": 2})
    assert found["accelerator"] == "cpu" and not {"devices", "num_nodes"} & found.keys()
