"""What a training step costs in one process, on one thread: a plain loop, torchbus sessions, and
other libraries.

    python benchmarks/overhead.py [--rounds 60] [--steps 400] [--quantile 0.5] [--json FILE]

Every contender trains the same model (an MLP of two hidden layers of 64) from the same numbers, on
one batch of 32 that is already in memory (first table) or collated by a DataLoader (second table),
with SGD. They are called as their documentation has it, with everything optional turned off:

- plain loop: ``zero_grad``, forward, ``backward``, ``step``. Listed twice: the second shows what
  this run can resolve.
- torchbus: the plain loop, called in ``with session(...)``.
- Ignite: ``Engine(update).run(...)``, where ``update`` is the plain loop's body.
- Fabric: ``setup(model, optimizer)``, ``setup_dataloaders`` and ``fabric.backward(loss)``.
- Accelerate: ``prepare(model, optimizer, loader)`` and ``accelerator.backward(loss)``.
- Trainer: ``Trainer(barebones=True)``, which is Lightning's own switch for comparisons of speed;
  one ``fit`` a round.

A step lasts from one batch that is asked for to the next, and is timed inside the source of the
batches, in mid-run. So no contender pays for its set-up, and none carries timing code that others
lack. A run's figure is the median of its steps.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from loops import train
from models import labels, mlp
from rounds import Batches, Row, Stopwatch, add_options, compared, show, silence, write_json
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

WIDTH, BATCH, WARMUP = 64, 32, 50
PLAIN = "plain loop"
Source = Iterable[tuple[Tensor, Tensor]]
Contender = Callable[[Source], object]


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """The samples of one batch, as often as they are asked for."""

    def __init__(self, batch: tuple[Tensor, Tensor], watch: Stopwatch) -> None:
        self._samples, self._watch = list(zip(*batch, strict=True)), watch

    def __len__(self) -> int:
        return BATCH * self._watch.length

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self._watch.tick()
        return [self._samples[index % BATCH] for index in indices]


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = mlp(2, WIDTH)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def memory(watch: Stopwatch) -> Source:
    torch.manual_seed(1)
    return Batches((torch.randn(BATCH, WIDTH), labels(BATCH)), watch)


def loader(watch: Stopwatch) -> Source:
    torch.manual_seed(1)
    return DataLoader(Samples((torch.randn(BATCH, WIDTH), labels(BATCH)), watch), BATCH)


# Contenders --------------------------------------------------------------------------------------


def plain(batches: Source) -> None:
    model, optimizer = make()
    for x, y in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


def in_session(batches: Source, *plugins: str, **options: Any) -> None:
    from torchbus import session

    with session(*plugins, accelerator="cpu", devices=1, **options):
        plain(batches)


def ignite(batches: Source) -> None:
    from ignite.engine import Engine

    model, optimizer = make()

    def update(engine: Engine, batch: tuple[Tensor, Tensor]) -> None:
        x, y = batch
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    Engine(update).run(batches, max_epochs=1)


def fabric(batches: Source) -> None:
    from lightning import Fabric

    launched = Fabric(accelerator="cpu", devices=1)
    launched.launch()
    model, optimizer = launched.setup(*make())
    if isinstance(batches, DataLoader):
        batches = launched.setup_dataloaders(batches)
    train(model, optimizer, batches, launched.backward)


def accelerate(batches: Source) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*make())
    if isinstance(batches, DataLoader):
        batches = accelerator.prepare(batches)
    train(model, optimizer, batches, accelerator.backward)


def trainer(batches: Source) -> None:
    from lightning import Trainer

    Trainer(barebones=True, max_epochs=1, accelerator="cpu", devices=1).fit(
        _module_class()(), batches
    )


@functools.cache
def _module_class() -> Any:
    from lightning import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self._optimizer = make()

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            x, y = batch
            return cross_entropy(self.model(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self._optimizer

    return Module


CONTENDERS: dict[str, tuple[Contender, Sequence[str]]] = {
    PLAIN: (plain, ()),
    "plain loop, again": (plain, ()),
    "torchbus: bare session": (in_session, ("torchbus",)),
    "torchbus: ddp, one rank": (
        functools.partial(in_session, strategy="ddp"),
        ("torchbus", "torchbus_ddp"),
    ),
    "torchbus: sampler": (
        lambda batches: in_session(batches, "sampler"),
        ("torchbus", "torchbus_sampler"),
    ),
    "torchbus: log": (lambda batches: in_session(batches, "log"), ("torchbus", "torchbus_log")),
    "torchbus: ddp, sampler, log": (
        lambda batches: in_session(batches, "sampler", "log", strategy="ddp"),
        ("torchbus", "torchbus_ddp", "torchbus_sampler", "torchbus_log"),
    ),
    "Ignite": (ignite, ("ignite",)),
    "Lightning Fabric": (fabric, ("lightning",)),
    "Accelerate": (accelerate, ("accelerate",)),
    "Lightning Trainer": (trainer, ("lightning",)),
}

# The run -----------------------------------------------------------------------------------------


def timed(
    source: Callable[[Stopwatch], Source], options: argparse.Namespace, contender: str
) -> float:
    watch = Stopwatch(WARMUP, options.steps, options.quantile)
    CONTENDERS[contender][0](source(watch))
    return watch.seconds_per_step()


def measure(source: Callable[[Stopwatch], Source], options: argparse.Namespace) -> list[Row]:
    return compared(CONTENDERS, functools.partial(timed, source, options), options.rounds, PLAIN)


def cells(rows: Sequence[Row]) -> dict[str, list[str]]:
    return {
        row.contender: [f"{row.seconds * 1e6:.1f}", f"{row.added * 1e6:+.1f}", f"{row.ratio:.3f}"]
        for row in rows
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, rounds=60)
    parser.add_argument(
        "--steps", type=int, default=400, help="timed steps of each run (default: %(default)s)"
    )
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    silence()
    results = {}
    for title, source in (("Batches in memory", memory), ("Batches from a DataLoader", loader)):
        results[title] = measure(source, options)
        show(
            f"{title}: {options.rounds} rounds of {options.steps} steps, torch {torch.__version__}",
            ["contender", "us/step", "added us", "ratio to plain"],
            cells(results[title]),
            CONTENDERS,
        )
    write_json(results, options)


if __name__ == "__main__":
    main()
