"""No option is silently unheard: each of the catalogue does something by itself, or is refused with
what it lacks.

An option that a package adds is in one of these tables, or the first test is red.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torchbus import session
from torchbus.bus import discovery
from torchbus.errors import UsageError

OPTIONS = sorted(discovery.distributions("option"))
STRATEGIES = {entry.value for entry in discovery.every("strategy")}
OF_A_STRATEGY = [name for name in OPTIONS if discovery.find("option", name).value in STRATEGIES]
WITHOUT_MAIN = {
    "amp_backend": ("native", "precision"),
    "every_minutes": (10, "checkpoint"),
    "every_n_epochs": (1, "checkpoint"),
    "every_n_steps": (100, "checkpoint"),
    "keep": (3, "checkpoint"),
    "local_copy": ("here", "checkpoint"),
    "mode": ("min", "monitor"),
    "monitor": ("val_loss", "checkpoint"),
    "resume": ("auto", "checkpoint"),
    "time_limit": ("11:50:00", "checkpoint"),
    "early_stop_mode": ("min", "early_stop"),
    "min_delta": (0.0, "early_stop"),
    "patience": (3, "early_stop"),
    "freeze_batchnorm": (True, "unfreeze"),
    "check_on_train_epoch_end": (True, "early_stop"),
    "divergence_threshold": (9.0, "early_stop"),
    "early_stop_strict": (True, "early_stop"),
    "load_best": (True, "monitor"),
    "stopping_threshold": (0.1, "early_stop"),
    "unfreeze_lr": (0.1, "unfreeze"),
    "gradient_clip_algorithm": ("norm", "gradient_clip_val"),
    "peak_flops": (1e12, "flops"),
    "memory_snapshot": (False, "profile"),
    "profile_folder": ("torchbus-profiles", "profile"),
    "quantize_library": ("torchao", "quantize"),
    "quantize_skip": (["head"], "quantize"),
}
ELSE = {"mode": "early_stop_mode=... for early_stop=..."}  # the remedy beside the main option
WITHOUT_TP = "plan=, sequence_parallel= or loss_parallel= without tp=: say how many ranks share"
WITHOUT_FP8 = "fp8_config and fp8_skip with precision='32-true': they would do nothing."
REFUSED_AT_ENTRY = {
    "accelerate_config": ("there.yaml", "accelerate_config='there.yaml' without strategy="),
    "fp8_config": ("rowwise", WITHOUT_FP8),
    "fp8_skip": (["head"], WITHOUT_FP8),
    "plan": ("auto", WITHOUT_TP),
    "sequence_parallel": (True, WITHOUT_TP),
    "loss_parallel": (True, WITHOUT_TP),
    "autolog": (True, "autolog=True without a logger: it would do nothing"),
    "log_grad_norms": ("layer", "log_grad_norms='layer' without a logger: it would do nothing"),
    "log_every_n_steps": (50, "log_every_n_steps=50 without a logger: it would do nothing"),
    "gradient_algorithm": (
        "fp16",
        "gradient_algorithm='fp16' changes what torch's DDP reducer sends, which this strategy does not use",
    ),
}
EXPLAINED = {
    "accumulate_grad_batches": (4, "accumulate"),
    "activation_checkpointing": ("auto", "activations"),
    "checkpoint": ("here", "written to"),
    "early_stop": ("val_loss", "when val_loss is no better 3 times in a row"),
    "ema_decay": (0.9, "an exponential moving average with decay 0.9"),
    "flops": (1e6, "1_000_000 FLOPs per sample"),
    "gpu_monitor": (True, "monitor"),
    "gradient_clip_val": (1.0, "gradients of each optimizer by norm, to 1"),
    "interval_s": (1.0, "every 1 s"),
    "lint": (True, "lint: says once what slows the loop down"),
    "log_dir": ("logs", "logs"),
    "model_summary": (2, "rank 0 prints each model, 2 level(s) deep"),
    "precision": ("bf16-mixed", "bf16-mixed"),
    "profile": ({"skip_first": 0}, "real steps 3 to 5"),
    "progress": (True, "a line on stderr"),
    "quantize": ("nf4", "no model yet"),
    "scale_lr": ("linear", "learning rates x 1"),
    "schedule_free": (True, "train() and eval() are called as those of their models"),
    "warmup_steps": (3, "learning rates grow over the first 3 steps"),
    "unfreeze": ({"backbone": 100}, "backbone: frozen until step 100"),
    "detect_anomaly": (True, "a backward that gives NaN is an error"),
    "deterministic": (True, "an algorithm that is not deterministic is an error"),
    "fast_dev_run": (2, "a pass has at most the batches of fast_dev_run=2"),
    "limit_train_batches": (9, "a pass has at most the batches of limit_train_batches=9"),
    "limit_eval_batches": (9, "a pass has at most the batches of limit_eval_batches=9"),
    "overfit_batches": (2, "each pass over a loader has the same samples"),
    "max_steps": (5, "after 5 real steps"),
    "max_time": ("00:10:00", "after 600 s"),
    "stop_on_nan": (True, "the job ends when a loss or a gradient is not finite"),
    "swa_start": (3, "the mean of all values after step 3"),
    "throughput_every": (20, "every 20 real steps"),
    "tokens": ("input_ids", "tokens by 'input_ids'"),
    "verify_every": (1000, "verify_every: one rank, nothing to compare"),
}
# tests of torchbus-sampler
BETWEEN_RANKS = {
    "batch": "global",
    "replace_sampler": False,
    "sample_ledger": "ledger",
    "shard_eval": True,
}
# tests of torchbus-checkpoint; format 3 always is what safetensors asks for
IN_WHAT_SAVE_WRITES = {"async_save": True, "safetensors": True, "sharded_save": True}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_option_is_in_one_table() -> None:
    tables = [
        OF_A_STRATEGY,
        *map(list, (WITHOUT_MAIN, REFUSED_AT_ENTRY, EXPLAINED, BETWEEN_RANKS, IN_WHAT_SAVE_WRITES)),
    ]
    assert sorted(name for table in tables for name in table) == OPTIONS


def test_those_that_need_another_one_are_those_that_their_plugins_name() -> None:
    named = {
        name: main
        for maker in _makers()
        for name, main in getattr(maker, "options_needed", {}).items()
        if name in OPTIONS
    }
    assert named | dict.fromkeys(("mode", "load_best"), "monitor") == {
        name: main for name, (_, main) in WITHOUT_MAIN.items()
    }


def _makers() -> Iterator[Any]:
    yield from (discovery.load(entry) for entry in discovery.every("plugin"))


@pytest.mark.parametrize("name", WITHOUT_MAIN)
def test_without_its_main_option_it_is_refused(name: str) -> None:
    """Whatever the value, the default too.

    ``None`` for the main option is said: a script may switch it off.
    """
    value, main = WITHOUT_MAIN[name]
    with pytest.raises(UsageError) as error:
        session(**{name: value})
    assert (
        str(error.value)
        == f"{name}={value!r} without {main}=...: it would do nothing. Pass {main}=... as well, or {ELSE.get(name, 'leave it out')}"
    )
    with pytest.raises(UsageError, match=f"without {main}="):
        session(_plugin_of(name), **{name: value})
    others = {"checkpoint": None} if main == "monitor" else {}
    if name != "amp_backend":
        with session(**{main: None, name: value, **others}):
            pass


def _plugin_of(option: str) -> str:
    """Its name: asked for by name, a plugin needs the main option all the same."""
    value = discovery.find("option", option).value
    return next(entry.name for entry in discovery.every("plugin") if entry.value == value)


@pytest.mark.parametrize("name", REFUSED_AT_ENTRY)
def test_what_nobody_hears_is_refused_before_the_loop(name: str) -> None:
    value, words = REFUSED_AT_ENTRY[name]
    with pytest.raises(UsageError) as error, session(**{name: value}):
        raise AssertionError("the loop must not run")
    assert str(error.value).startswith(words)


@pytest.mark.parametrize("logger", [False, None])
def test_a_logger_that_is_switched_off_is_said(logger: bool | None) -> None:
    with session(logger=logger, log_every_n_steps=5, autolog=True) as s:
        s.log("loss", 1.0)
    with session(autolog=False):  # asks for nothing
        pass


@pytest.mark.parametrize("name", EXPLAINED)
def test_what_is_heard_is_explained(name: str) -> None:
    value, words = EXPLAINED[name]
    with session(**{name: value}) as s:
        lines = [line for line in s.explain().splitlines() if not line.startswith("plugins")]
    assert words in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("name", OF_A_STRATEGY)
def test_an_option_of_another_strategy_is_refused(name: str) -> None:
    """Its strategy would come beside the one that was asked for."""
    owner = _plugin_of(name)
    for entry in discovery.every("strategy"):
        maker = discovery.load(entry)
        owns = "strategy" in getattr(maker, "owns", ())
        combined = f"{entry.name}+{name}" in discovery.installed("combination")
        takes = combined or name in inspect.signature(maker).parameters
        if owns and owner != "ddp_sharded" and not takes:
            with pytest.raises(UsageError) as error:
                session(strategy=entry.name, **{name: _some_value(name)})
            assert str(error.value) == (
                f"{name}: an option of strategy={owner!r}, and the strategy here is {entry.name!r}: leave it out, or pass strategy={owner!r}"
            )


def test_a_strategy_that_brings_ddp_along_is_named_itself() -> None:
    session(
        strategy="ddp_sharded", backend="gloo", devices=2
    )  # an option of ddp, which comes along
    with pytest.raises(UsageError) as error:
        session(strategy="ddp_sharded", tp=2, devices=2)
    assert str(error.value) == (
        "tp: an option of strategy='tp', and the strategy here is 'ddp_sharded': leave it out, or pass strategy='tp'"
    )


def _some_value(name: str) -> Any:
    default = (
        inspect.signature(discovery.load(discovery.find("option", name))).parameters[name].default
    )
    return {"param_init_fn": print}.get(name, default)


def test_an_option_of_another_strategy_than_that_of_several_devices() -> None:
    """``strategy="auto"`` is ddp there."""
    with pytest.raises(
        UsageError,
        match=r"^hybrid, cpu_offload: an option of strategy='fsdp', and the strategy here is 'ddp': ",
    ):
        session(devices=2, accelerator="cpu", hybrid=True, cpu_offload=True)


@pytest.mark.parametrize("options", [{"shard_eval": True}, {"sample_ledger": "folder"}])
def test_divided_evaluation_needs_divided_loaders(options: dict[str, Any]) -> None:
    name, value = next(iter(options.items()))
    words = rf"^{name}={value!r} with replace_sampler=False: no loader is divided, so it would do nothing\. Leave one of them out$"
    with pytest.raises(UsageError, match=words):
        session(replace_sampler=False, **options)
    words = rf"^{name}={value!r} with strategy='dp': no loader is divided"
    with (
        pytest.raises(UsageError, match=words),
        session(strategy="dp", devices=2, accelerator="cpu", launch="fork", **options),
    ):
        raise AssertionError("the loop must not run")


def test_the_ledger_of_one_rank() -> None:
    with (
        pytest.warns(UserWarning, match="^sample_ledger: one rank takes every sample"),
        session(sample_ledger="ledger"),
    ):
        pass
