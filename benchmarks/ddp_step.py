"""What a data-parallel training step costs: hand-written DDP, torchbus, Fabric and Accelerate, two
gloo ranks, one job.

    torchrun --nproc-per-node 2 benchmarks/ddp_step.py [--rounds 30] [--seconds 0.5] [--models NAME
    ...] [--quantile 0.5]

All contenders run in the same two processes and the same process group, which this script makes;
each rank has one thread. Each trains the same model from the same numbers on its rank's own batch,
which is in memory, with SGD; DDP has its defaults, BatchNorm's buffers included. How they are
called:

- hand-written DDP: ``model = DistributedDataParallel(model)``, and a plain loop.
- torchbus: the plain loop, called in ``with session(strategy="ddp")``. One session a round.
- Fabric: ``Fabric(strategy="ddp")``, ``setup(model, optimizer)``, ``fabric.backward(loss)``.
- Accelerate: ``prepare(model, optimizer)``, ``accelerator.backward(loss)``.

A step lasts from one batch that is asked for to the next, in mid-run, without any contender's
set-up; a run's figure is the median of its steps on rank 0. Besides its time each contender's
parameters are compared with those of hand-written DDP after the first round: the column "apart" is
the largest difference.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from loops import train
from models import Transformer, conv_net, labels, mlp
from rounds import Batches, Row, Stopwatch, add_options, compared, show, silence, write_json
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

HAND = "hand-written DDP"
WARMUP, FEWEST, PROBE = 10, 10, 20  # steps
Source = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Task:
    """A model and this rank's batch."""

    make_model: Callable[[], nn.Module]
    make_input: Callable[[], Tensor]

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = self.make_model()
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    def batch(self) -> tuple[Tensor, Tensor]:
        torch.manual_seed(1 + dist.get_rank())
        x = self.make_input()
        return x, labels(len(x))


TASKS = {
    "MLP 2x64": Task(lambda: mlp(2, 64), lambda: torch.randn(32, 64)),
    "MLP 6x512": Task(lambda: mlp(6, 512), lambda: torch.randn(32, 512)),
    "conv net": Task(lambda: conv_net(22, 16), lambda: torch.randn(8, 3, 8, 8)),
    "transformer": Task(lambda: Transformer(4, 128, 1000), lambda: torch.randint(1000, (8, 32))),
}

# Contenders: each trains and returns the trained parameters --------------------------------------


def plain(
    task: Task, batches: Source, wrap: Callable[[nn.Module], nn.Module] = lambda model: model
) -> list[Tensor]:
    model, optimizer = task.model()
    wrapped = wrap(model)
    for x, y in batches:
        optimizer.zero_grad()
        loss = cross_entropy(wrapped(x), y)
        loss.backward()
        optimizer.step()
    return list(model.parameters())


def hand_written(task: Task, batches: Source) -> list[Tensor]:
    return plain(task, batches, DistributedDataParallel)


def torchbus(task: Task, batches: Source) -> list[Tensor]:
    from torchbus import session

    with session(strategy="ddp", accelerator="cpu"):
        return plain(task, batches)


def fabric(task: Task, batches: Source) -> list[Tensor]:
    from lightning import Fabric

    launched = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    launched.launch()
    model, optimizer = launched.setup(*task.model())
    train(model, optimizer, batches, launched.backward)
    return list(model.parameters())


def accelerate(task: Task, batches: Source) -> list[Tensor]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*task.model())
    train(model, optimizer, batches, accelerator.backward)
    return list(model.parameters())


Contender = Callable[[Task, Source], list[Tensor]]
CONTENDERS: dict[str, tuple[Contender, Sequence[str]]] = {
    HAND: (hand_written, ()),
    "hand-written DDP, again": (hand_written, ()),
    "torchbus": (torchbus, ("torchbus", "torchbus_ddp")),
    "Lightning Fabric": (fabric, ("lightning",)),
    "Accelerate": (accelerate, ("accelerate",)),
}

# The run -----------------------------------------------------------------------------------------


@dataclass
class Bench:
    """One model's contenders. ``trained`` holds what each of them ended with in its first run."""

    task: Task
    steps: int
    quantile: float = 0.5
    trained: dict[str, Tensor] = field(default_factory=dict)

    def run(self, name: str) -> float:
        watch = Stopwatch(WARMUP, self.steps, self.quantile)
        dist.barrier()
        parameters = CONTENDERS[name][0](self.task, Batches(self.task.batch(), watch))
        self.trained.setdefault(
            name, torch.cat([parameter.detach().flatten() for parameter in parameters])
        )
        return watch.seconds_per_step()

    def apart(self) -> dict[str, float]:
        """The largest difference between a contender's parameters and those of hand-written DDP."""
        return {
            name: float((values - self.trained[HAND]).abs().max())
            for name, values in self.trained.items()
        }


def steps_for(task: Task, seconds: float) -> int:
    """How many steps of hand-written DDP take so long; the same number on all ranks."""
    bench = Bench(task, PROBE)
    probed = torch.tensor(seconds / min(bench.run(HAND), bench.run(HAND)))
    dist.broadcast(probed, src=0)
    return max(FEWEST, int(probed))


def cells(rows: Sequence[Row], apart: Mapping[str, float]) -> dict[str, list[str]]:
    return {
        row.contender: [
            f"{row.seconds * 1e3:.3f}",
            f"{row.ratio:.3f}",
            f"{apart[row.contender]:.0e}",
        ]
        for row in rows
    }


def measure(name: str, options: argparse.Namespace) -> list[Row]:
    bench = Bench(TASKS[name], steps_for(TASKS[name], options.seconds), options.quantile)
    rows = compared(CONTENDERS, bench.run, options.rounds, HAND)
    if dist.get_rank() == 0:
        modules = len(list(bench.task.make_model().modules()))
        show(
            f"{name} ({modules} modules): {options.rounds} rounds of {bench.steps} steps,"
            f" torch {torch.__version__}",
            ["contender", "ms/step", "ratio to DDP", "apart"],
            cells(rows, bench.apart()),
            CONTENDERS,
        )
    return rows


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, rounds=30)
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.5,
        help="about how long each run is timed (default: %(default)s)",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=TASKS,
        default=list(TASKS),
        metavar="NAME",
        help=f"of {', '.join(TASKS)}",
    )
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    silence()
    dist.init_process_group("gloo")
    results = {name: measure(name, options) for name in options.models}
    if dist.get_rank() == 0:
        write_json(results, options)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
