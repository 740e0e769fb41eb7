"""What logging costs: torchbus beside Lightning's self.log, Accelerate's log, and the raw trackers,
in one process.

    python benchmarks/log_calls.py [--rounds 20] [--steps 200] [--quantile 0.5] [--json FILE]

First table, one call: the host's time for logging one value in a step, a number or a tensor of one
element.

- torchbus: ``s.log("loss", value)`` in a session with a logger, which is brought to the host at the
  next log point.
- Lightning: ``self.log("loss", value)`` in ``training_step``, as ``Trainer`` runs it, without a
  logger.
- raw wandb: ``run.log({"loss": value})``, offline. raw neptune: ``run["loss"].append(value)``,
  offline. raw TensorBoard: ``writer.add_scalar("loss", value, step)``. These want numbers: a tensor
  is ``.item()``-ed first, which on a GPU waits for it.
- Accelerate: ``accelerator.log({"loss": value}, step)`` with its TensorBoard tracker.

Second table, one point: the time for a record of 5 numbers to be written or handed over.

- torchbus local: a line of the JSON-lines file. The others are their loggers, called as for a log
  point, on the loop's thread.
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
from contextlib import contextmanager
from typing import Any

import torch
from raw_clients import RAW
from rounds import add_options, installed, interleave, summarise, table, write_json
from torchbus import session
from torchbus.bus.base import hookimpl

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


# Contenders: each is a context that gives the call to time ---------------------------------------


@contextmanager
def torchbus_log(value: Any) -> Iterator[Call]:
    """Log points cost what the second table says; here are the steps between them."""
    with session(logger=Hears(), strategy=None) as s:
        yield lambda step: s.log("loss", value)


@contextmanager
def torchbus_point(logger: object) -> Iterator[Call]:
    with session(logger=logger, strategy=None, autolog=False) as s:
        hook = s._context.bus.hook.metrics_ready
        yield lambda step: hook(metrics=NUMBERS, step=step, epoch=0, prog_bar=frozenset())


@contextmanager
def lightning_log(value: Any, steps: int, times: list[float]) -> Iterator[Call]:
    """One ``fit`` of ``steps`` steps, which times each ``self.log``."""
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
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    yield lambda step: trainer.fit(
        Module(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(steps, 1)))
    )


# Tables ------------------------------------------------------------------------------------------


def in_context(
    context: Callable[..., Any], given: Any, options: argparse.Namespace
) -> Callable[[], float]:
    """Each round opens the context again: a client's runs must not see each other."""

    def run() -> float:
        with context(given) as call:
            return timed(call, options.steps, options.quantile)

    return run


def raw(numbers: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Callable[[], float]]:
    """One record by each client itself, in one call where it has one."""
    return {
        name: in_context(context, numbers, options)
        for name, (context, needs) in RAW.items()
        if installed(*needs)
    }


def one_call(value: Any, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of logging one value, by contender and round."""

    def lightnings() -> float:
        times: list[float] = []
        with lightning_log(value, options.steps, times) as call:
            call(0)
        return sorted(times)[int(options.quantile * (len(times) - 1))]

    contenders = {"torchbus s.log": in_context(torchbus_log, value, options)}
    if installed("lightning"):
        contenders["Lightning self.log"] = lightnings
    return interleave(contenders | raw({"loss": value}, options), options.rounds)


def one_point(options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds for a record of several numbers, by contender and round."""
    loggers = [
        ("torchbus local", "local"),
        ("torchbus wandb", "wandb"),
        ("torchbus neptune", "neptune"),
        ("torchbus TensorBoard", "tensorboard"),
    ]
    present = [
        (name, logger)
        for name, logger in loggers
        if logger == "local" or installed(f"torchbus_{logger}", logger)
    ]
    ours = {name: in_context(torchbus_point, logger, options) for name, logger in present}
    return interleave(ours | raw(NUMBERS, options), options.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, rounds=10)
    parser.add_argument(
        "--steps", type=int, default=200, help="calls of a run (default: %(default)s)"
    )
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
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                times = run()
            results[title] = rows = summarise(times, next(iter(times)))
            lines = [
                (row.contender, f"{row.seconds * MICRO:.1f}", f"{row.ratio:.1f}") for row in rows
            ]
            print(table(f"{title}: microseconds on the host", ("", "us", "ratio"), lines))
    write_json(results, options)


if __name__ == "__main__":
    main()
