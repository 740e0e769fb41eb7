"""What replicas that shard the model refuse: each message, as JSON."""

import json
import sys

import torch
from torchbus import session

from torchbus_ft.strategy import FT
from torchbus_sharded.strategy import FSDP

URL = sys.argv[sys.argv.index("--lighthouse") + 1]


def sharded() -> FT:
    return FT(lighthouse=URL, replica_strategy="fsdp")


def enter(*plugins, strategy: FT | None = None, devices: int = 2, **words) -> None:
    strategy = strategy or sharded()
    with session(*plugins, strategy=strategy, devices=devices, launch="fork", **words):
        pass


def loose() -> None:
    with session(strategy=sharded(), devices=2, launch="fork"):
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], 0.1)


def absent() -> None:
    """As if torchbus-sharded were not installed."""
    strategy = sharded()
    strategy.companions = ("sampler",)
    enter(strategy=strategy)


def message(run) -> str:
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


told = {
    "one_rank": message(lambda: enter(devices=1)),
    "whole": message(lambda: enter(gradient_algorithm="diloco")),
    "hybrid": message(lambda: enter(FSDP(hybrid=True))),
    "loose": message(loose),
    "absent": message(absent),
}
print(json.dumps(told))
