"""What logging costs: torchbus beside Lightning's self.log, Accelerate's log, and the raw trackers, in one process.

    python benchmarks/log_calls.py [--rounds 20] [--steps 200] [--quantile 0.5] [--json FILE]

First table, one call: the host's time for logging one value in a step, a number or a tensor of one element.

- torchbus: ``s.log("loss", value)`` in a session with a logger, which is brought to the host at the next log point.
- Lightning: ``self.log("loss", value)`` in ``training_step``, as ``Trainer`` runs it, without a logger.
- raw wandb: ``run.log({"loss": value})``, offline. raw neptune: ``run["loss"].append(value)``, offline. raw TensorBoard:
  ``writer.add_scalar("loss", value, step)``. These want numbers: a tensor is ``.item()``-ed first, which on a GPU waits for it.
- Accelerate: ``accelerator.log({"loss": value}, step)`` with its TensorBoard tracker.

Second table, one point: the time for a record of 5 numbers to be written or handed over.

- torchbus local: a line of the JSON-lines file. The others are their loggers, called as for a log point, on the loop's thread.
- raw: the same record by each client itself, all numbers in one call where there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from rounds import add_options, installed, interleave, summarise, table, write_json
from torchbus import hookimpl, session

NUMBERS = {f"metric{number}": 0.5 + number for number in range(5)}
Call = Callable[[int], object]
MICRO = 1e6


class Hears:
    """A logger that does nothing."""

    @hookimpl
    def metrics_ready(self) -> None:
        pass


def timed(call: Call, steps: int, quantile: float) -> float:
    """Seconds of one call."""
    times = []
    for step in range(steps):
        begun = time.perf_counter()
        call(step)
        times.append(time.perf_counter() - begun)
    return sorted(times)[int(quantile * (steps - 1))]


# Contenders: each is a context that gives the call to time ---------------------------------------------------------


@contextmanager
def torchbus_log(value: Any) -> Iterator[Call]:
    """Log points cost what the second table says; here are the steps between them."""
    with session(logger=Hears(), strategy=None) as s:
        yield lambda step: s.log("loss", value)


@contextmanager
def torchbus_point(logger: object) -> Iterator[Call]:
    with session(logger=logger, strategy=None, autolog=False) as s:
        hook = s.bus.hook.metrics_ready
        yield lambda step: hook(metrics=NUMBERS, step=step, epoch=0, prog_bar=frozenset())


@contextmanager
def lightning_log(value: Any, steps: int, times: list[float]) -> Iterator[Call]:
    """One ``fit`` of so many steps, which times each ``self.log``."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: Any) -> torch.Tensor:
            begun = time.perf_counter()
            self.log("loss", value)
            times.append(time.perf_counter() - begun)
            return self.weight.sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu"
    )  # fmt: skip
    yield lambda step: trainer.fit(Module(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(steps, 1))))


@contextmanager
def wandb_run() -> Iterator[Any]:
    import wandb

    with wandb.init(mode="offline", project="benchmark", settings=wandb.Settings(silent=True, console="off")) as run:
        yield run


@contextmanager
def neptune_run() -> Iterator[Any]:
    import neptune

    run = neptune.init_run(mode="offline", capture_stdout=False, capture_stderr=False, capture_hardware_metrics=False, source_files=[])
    yield run
    run.stop()


@contextmanager
def tensorboard_writer() -> Iterator[Any]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("runs") as writer:
        yield writer


@contextmanager
def accelerate_log() -> Iterator[Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir="accelerate")
    accelerator.init_trackers("benchmark")
    yield accelerator
    accelerator.end_training()


def raw_calls(stack: ExitStack, numbers: Mapping[str, Any]) -> dict[str, Call]:
    """One record by each client itself, in one call where it has one."""
    calls: dict[str, Call] = {}

    def items() -> dict[str, float]:
        return {name: value.item() if isinstance(value, torch.Tensor) else value for name, value in numbers.items()}

    if installed("wandb"):
        wandb = stack.enter_context(wandb_run())
        calls["raw wandb"] = lambda step: wandb.log({**items(), "step": step})
    if installed("neptune"):
        neptune = stack.enter_context(neptune_run())
        calls["raw neptune"] = lambda step: [neptune[name].append(value) for name, value in items().items()]
    if installed("tensorboard"):
        writer = stack.enter_context(tensorboard_writer())
        calls["raw TensorBoard"] = lambda step: [writer.add_scalar(name, value, step) for name, value in items().items()]
    if installed("accelerate", "tensorboard"):
        accelerator = stack.enter_context(accelerate_log())
        calls["Accelerate"] = lambda step: accelerator.log(items(), step=step)
    return calls


# Tables --------------------------------------------------------------------------------------------------------------


def one_call(value: Any, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of logging one value, by contender and round."""

    def ours() -> float:
        with torchbus_log(value) as call:
            return timed(call, options.steps, options.quantile)

    def lightnings() -> float:
        times: list[float] = []
        with lightning_log(value, options.steps, times) as call:
            call(0)
        return sorted(times)[int(options.quantile * (len(times) - 1))]

    with ExitStack() as stack:
        calls = raw_calls(stack, {"loss": value})
        contenders: dict[str, Callable[[], float]] = {"torchbus s.log": ours}
        if installed("lightning"):
            contenders["Lightning self.log"] = lightnings
        contenders |= {name: lambda call=call: timed(call, options.steps, options.quantile) for name, call in calls.items()}  # type: ignore[misc]
        return interleave(contenders, options.rounds)


def one_point(options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds for a record of several numbers, by contender and round."""
    loggers = [("torchbus local", "local"), ("torchbus wandb", "wandb"), ("torchbus neptune", "neptune"), ("torchbus TensorBoard", "tensorboard")]

    def ours(logger: str) -> float:
        with torchbus_point(logger) as call:
            return timed(call, options.steps, options.quantile)

    present = [(name, logger) for name, logger in loggers if logger == "local" or installed(f"torchbus_{logger}", logger)]
    contenders = {name: lambda logger=logger: ours(logger) for name, logger in present}
    with ExitStack() as stack:
        calls = raw_calls(stack, NUMBERS)
        contenders |= {name: lambda call=call: timed(call, options.steps, options.quantile) for name, call in calls.items()}  # type: ignore[misc]
        return interleave(contenders, options.rounds)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, rounds=10)
    parser.add_argument("--steps", type=int, default=200, help="calls of a run (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ |= {"WANDB_MODE": "offline", "NEPTUNE_MODE": "offline"}
    warnings.simplefilter("ignore")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for title, run in {
            "one number": lambda: one_call(0.5, options),
            "one tensor": lambda: one_call(torch.tensor(0.5), options),
            "a record of 5 numbers": lambda: one_point(options),
        }.items():
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                times = run()
            results[title] = rows = summarise(times, next(iter(times)))
            lines = [(row.contender, f"{row.seconds * MICRO:.1f}", f"{row.ratio:.1f}") for row in rows]
            print(table(f"{title}: microseconds on the host", ("", "us", "ratio"), lines))
    write_json(results, options)


if __name__ == "__main__":
    main()
