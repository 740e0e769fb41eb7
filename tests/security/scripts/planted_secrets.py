import argparse
import dataclasses
import os
import sys
import types

import torch
from torch.utils.data import DataLoader
from torchbus import session


@dataclasses.dataclass
class Settings:
    password: str = "plant-dataclass-77"
    lr: float = 0.1


class Client:
    def __init__(self):
        self.api_key = "plant-repr-77"

    def __repr__(self):
        return f"Client(api_key={self.api_key!r})"


parser = argparse.ArgumentParser()
parser.add_argument("--api-key")
parser.add_argument("--hub-token")
parser.add_argument("--loggers")
parser.add_argument("--fail", type=int, default=0)
given = parser.parse_args()
env = os.environ["SOME_API_TOKEN"]
data = torch.randn(16, 2)
with session(
    strategy="ddp",
    devices=2,
    accelerator="cpu",
    launch="fork",
    logger=given.loggers.split(","),
    log_every_n_steps=1,
    checkpoint="ck",
    every_n_steps=2,
) as s:
    s.log_hyperparams(given)
    s.log_hyperparams(
        {
            "wandb-key": "plant-name-77",
            "nested": [{"pwd": "plant-nested-77"}],
            "client": Client(),
            "settings": Settings(),
            "bearer": "plant-bearer-77",
            "copy": f"it is {env} and plant-name-77",
            "argv": sys.argv,
            "env": dict(os.environ),
            "url": "https://me:plant-url-77@host/x",
            "sn": types.SimpleNamespace(token="plant-namespace-77"),
            "kept": "shown-77",
            "header": {"Authorization": "Bearer plant-header-77"},
            env: 1,
        }
    )
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in enumerate(DataLoader(data, batch_size=2)):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        s.log("acc", step)
        if given.fail and step == 2 and s.rank == 1:
            raise ValueError(f"refused {env} for {given.api_key} at https://me:plant-url-77@host")
    text = s.explain()
    if s.is_main:
        print(text)
