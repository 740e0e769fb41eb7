"""What a step costs under horovod, against Horovod used by hand: two ranks.

    horovodrun -np 2 --gloo python benchmarks/horovod_step.py [--rounds 10] [--steps 20]

By hand: ``hvd.broadcast_parameters`` and ``hvd.DistributedOptimizer``. It does not know the loss
over all ranks. Horovod is started once, for all contenders.
"""

from __future__ import annotations

import argparse
import functools
import os

from engines import batch, made, train
from rounds import Batches, add_options
from torchbus import session
from two_ranks import Loop, group, race


def by_hand(width: int, batches: Batches) -> None:
    import horovod.torch as hvd

    model, optimizer = made(width)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    named = model.named_parameters()
    train(model, hvd.DistributedOptimizer(optimizer, named_parameters=named), batches)


def by_torchbus(width: int, batches: Batches) -> None:
    with session(strategy="horovod", accelerator="cpu", replace_sampler=False):
        train(*made(width), batches)


def start_horovod() -> None:
    import horovod.torch as hvd

    hvd.init()


def in_torchs_words() -> None:
    """Torch's group, over which the contenders wait for each other, reads these variables."""
    for name in ("RANK", "SIZE"):
        os.environ[name.replace("SIZE", "WORLD_SIZE")] = os.environ[f"HOROVOD_{name}"]
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_options(parser, rounds=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    start_horovod()
    in_torchs_words()
    alone = functools.partial(by_hand, options.width)
    loops: dict[str, Loop] = {
        "by hand": alone,
        "by hand, again": alone,
        "torchbus": functools.partial(by_torchbus, options.width),
    }
    with group():
        race({"horovod": loops}, functools.partial(batch, options.width), options)


if __name__ == "__main__":
    main()
