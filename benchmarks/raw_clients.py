"""One record by each tracker's own client, for ``log_calls.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

Call = Callable[[int], object]


@contextmanager
def raw_wandb(numbers: Mapping[str, Any]) -> Iterator[Call]:
    import wandb

    with wandb.init(
        mode="offline", project="benchmark", settings=wandb.Settings(silent=True, console="off")
    ) as run:
        yield lambda step: run.log({**on_host(numbers), "step": step})


@contextmanager
def raw_neptune(numbers: Mapping[str, Any]) -> Iterator[Call]:
    import neptune

    run = neptune.init_run(
        mode="offline",
        capture_stdout=False,
        capture_stderr=False,
        capture_hardware_metrics=False,
        source_files=[],
    )
    yield lambda step: [run[name].append(value) for name, value in on_host(numbers).items()]
    run.stop()


@contextmanager
def raw_tensorboard(numbers: Mapping[str, Any]) -> Iterator[Call]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("runs") as writer:
        yield lambda step: [
            writer.add_scalar(name, value, step) for name, value in on_host(numbers).items()
        ]


@contextmanager
def accelerate_log(numbers: Mapping[str, Any]) -> Iterator[Call]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir="accelerate")
    accelerator.init_trackers("benchmark")
    yield lambda step: accelerator.log(on_host(numbers), step=step)
    accelerator.end_training()


def on_host(numbers: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value.item() if isinstance(value, torch.Tensor) else value
        for name, value in numbers.items()
    }


RAW = {
    "raw wandb": (raw_wandb, ["wandb"]),
    "raw neptune": (raw_neptune, ["neptune"]),
    "raw TensorBoard": (raw_tensorboard, ["tensorboard"]),
    "Accelerate": (accelerate_log, ["accelerate", "tensorboard"]),
}
