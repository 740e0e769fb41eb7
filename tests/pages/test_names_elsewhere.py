"""Arguments, methods and classes of Lightning and Accelerate have a counterpart, or an error that
says what to write.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import accelerate
import accelerate.tracking
import lightning
import pytest
from lightning.fabric import Fabric
from lightning.pytorch import callbacks, loggers, tuner
from torchbus.bus import discovery
from torchbus.session import CORE_OPTIONS, Session

TAKES_ARGUMENTS = [
    lightning.Trainer,
    lightning.Trainer.fit,
    lightning.Trainer.test,
    lightning.Trainer.predict,
    lightning.seed_everything,
    callbacks.ModelCheckpoint,
    callbacks.EarlyStopping,
    callbacks.LearningRateMonitor,
    callbacks.StochasticWeightAveraging,
    callbacks.EMAWeightAveraging,
    callbacks.DeviceStatsMonitor,
    callbacks.RichProgressBar,
    callbacks.TQDMProgressBar,
    callbacks.ModelSummary,
    callbacks.Timer,
    callbacks.GradientAccumulationScheduler,
    tuner.Tuner,
    tuner.Tuner.lr_find,
    tuner.Tuner.scale_batch_size,
    Fabric,
    accelerate.Accelerator,
]
OF_THE_TRAINER = [
    "callback_metrics", "checkpoint_callback", "current_epoch", "estimated_stepping_batches", "fit",
    "global_rank", "global_step", "is_global_zero", "local_rank", "logged_metrics", "logger",
    "loggers", "max_epochs", "node_rank", "num_devices", "num_nodes", "num_training_batches",
    "optimizers", "predict", "progress_bar_metrics", "save_checkpoint", "test", "train_dataloader",
    "validate", "world_size",
]  # fmt: skip
OF_THE_MODULE = [
    "all_gather", "clip_gradients", "configure_optimizers", "device", "hparams", "log", "log_dict",
    "lr_schedulers", "manual_backward", "optimizers", "print", "save_hyperparameters",
    "toggle_optimizer", "toggled_optimizer", "training_step", "untoggle_optimizer",
    "validation_step",
]  # fmt: skip
WITHOUT_COUNTERPART = {  # of Accelerator
    "context_parallel_rank", "data_parallel_shard_rank", "deepspeed_plugin",
    "deepspeed_ulysses_dl_adapter", "fp8_backend", "is_composable_parallelism_enabled", "is_fsdp2",
    "lomo_backward", "maybe_context_parallel", "non_blocking", "parallelism_config",
    "pipeline_parallel_rank", "should_save_model", "tensor_parallel_rank", "use_seedable_sampler",
    "use_stateful_dataloader", "verify_device_map",
}  # fmt: skip


@pytest.mark.parametrize("taking", TAKES_ARGUMENTS, ids=lambda one: one.__qualname__)
def test_each_argument_is_an_option_or_has_a_hint(taking: Callable[..., Any]) -> None:
    known = {*discovery.distributions("option"), *CORE_OPTIONS, *discovery.hints("option"), "self"}
    asked = [
        name
        for name, one in inspect.signature(taking).parameters.items()
        if one.kind is not one.VAR_KEYWORD
    ]
    assert [name for name in asked if name not in known] == []


def test_each_method_is_one_of_the_session_or_has_a_hint() -> None:
    known = {*discovery.distributions("verb"), *dir(Session), *discovery.hints("verb")}
    asked = {*_public(Fabric), *_public(accelerate.Accelerator), *OF_THE_TRAINER, *OF_THE_MODULE}
    assert sorted(asked - known - WITHOUT_COUNTERPART) == []
    assert {*OF_THE_TRAINER} <= {*dir(lightning.Trainer)}
    assert {*OF_THE_MODULE} <= {*dir(lightning.LightningModule)}


def _public(thing: type) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def _classes(module: Any, base: type) -> list[type]:
    found = [
        one for one in vars(module).values() if isinstance(one, type) and issubclass(one, base)
    ]
    return [one for one in found if one is not base and not one.__name__.startswith("Lit")]


@pytest.mark.parametrize(
    "given",
    [
        *_classes(callbacks, callbacks.Callback),
        *_classes(loggers, loggers.Logger),
        *_classes(accelerate.tracking, accelerate.tracking.GeneralTracker),
    ],
    ids=lambda one: one.__name__,
)
def test_each_callback_and_logger_has_a_hint(given: type) -> None:
    assert any(discovery.hint("object", one.__name__) for one in given.__mro__)


@pytest.mark.parametrize("given", [callbacks.EarlyStopping("loss"), callbacks.EarlyStopping])
def test_a_callback_of_lightning(given: object) -> None:
    with pytest.raises(ValueError, match=r"is not a plugin.*: write early_stop='val_loss', with"):
        Session(given)


@pytest.mark.parametrize("given", [loggers.CSVLogger("here"), loggers.CSVLogger])
def test_a_logger_of_lightning(given: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a logger: write logger='csv'$"):
        Session(logger=given)
