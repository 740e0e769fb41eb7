"""Prints the message of each error that a session raises before it trains, as JSON."""

import json
import sys

import torch
from torch.utils.data import DataLoader, IterableDataset
from torchbus import session

from torchbus_ft.strategy import FT

URL = sys.argv[sys.argv.index("--lighthouse") + 1]
STRICT = sys.argv[sys.argv.index("--strict") + 1]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.randn(8, 4))


def enter(*plugins, **words) -> None:
    with session(*plugins, launch="fork", **words):
        pass


def stream() -> None:
    with session(FT(lighthouse=URL), launch="fork"):
        model = torch.nn.Linear(4, 1)
        torch.optim.SGD(model.parameters(), 0.1)
        next(iter(DataLoader(Stream(), 2)))


def by_hand() -> None:
    with session(FT(lighthouse=URL), launch="fork"):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            loss = model(torch.randn(2, 4)).mean()
            for parameter, gradient in zip(
                model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
            ):
                parameter.grad = gradient
            optimizer.step()


def few() -> None:
    with session(FT(lighthouse=URL, replica="x", min_replicas=2, quorum_timeout_s=7.0)):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        optimizer.zero_grad()


def no_quorum() -> None:
    with session(FT(lighthouse=STRICT, replica="x", quorum_timeout_s=1.0)):
        model = torch.nn.Linear(4, 1)
        torch.optim.SGD(model.parameters(), 0.1).zero_grad()


def message(run) -> str:
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


print(
    json.dumps(
        {
            "none": message(lambda: enter(FT())),
            "no_url": message(lambda: enter(FT(lighthouse="localhost"))),
            "no_address": message(lambda: enter(FT(lighthouse="http://nowhere.invalid:9"))),
            "silent": message(lambda: enter(FT(lighthouse="http://127.0.0.1:9", timeout_s=1.0))),
            "inside": message(lambda: FT(replica_strategy="pp")),
            "shard_eval": message(lambda: enter(FT(lighthouse=URL), shard_eval=True)),
            "stream": message(stream),
            "by_hand": message(by_hand),
            "buffers": message(lambda: enter(FT(lighthouse=URL, sync_buffers="mean"))),
            "reduction": message(lambda: FT(replica_strategy="fsdp", loss_reduction="sum")),
            "least": message(lambda: FT(min_replicas=0)),
            "seconds": message(lambda: FT(timeout_s=0)),
            "few": message(few),
            "no_quorum": message(no_quorum),
            "host": message(lambda: FT(host=3)),
        }
    )
)
