"""Trains in emulated float8 in a session, and prints how far it is from torchao by hand."""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchbus import session

strategy, ranks, recipe, options = json.loads(sys.argv[1])
torch.set_num_threads(1)


def emulated():
    made = Float8LinearConfig.from_recipe_name(recipe)
    words = {name: getattr(made, name) for name in made.__dataclass_fields__}
    return Float8LinearConfig(**{**words, "emulate": True, "pad_inner_dim": True})


def make():
    torch.manual_seed(0)
    block = [nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 32)]
    model = nn.Sequential(nn.Linear(5, 32), nn.Sequential(*block), nn.Linear(32, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batches(size):
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(22, 5), torch.randint(3, (22,)))
    return DataLoader(data, batch_size=size)


def values(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


class Half(nn.Module):
    """What autocast does on a GPU to the input of torchao's layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return self.layer(x.bfloat16())


def by_hand():
    """One process. It takes the ranks' shares of a batch apart, as each has scales of its own."""
    model, optimizer = make()
    block = convert_to_float8_training(model[1], config=emulated())
    block[0], block[2] = Half(block[0]), Half(block[2])
    apart = ranks if recipe == "tensorwise" else 1
    for x, y in batches(6):
        optimizer.zero_grad()
        for part, targets in zip(x.tensor_split(apart), y.tensor_split(apart), strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                output = model(part)
            loss = nn.functional.cross_entropy(output.float(), targets)
            (loss * len(part) / len(x)).backward()
        optimizer.step()
    return values(model)


with session(
    strategy=strategy if ranks > 1 else None,
    devices=ranks,
    accelerator="cpu",
    launch="fork",
    precision="fp8",
    fp8_config=emulated(),
    **options,
) as s:
    model, optimizer = make()
    for x, y in batches(6 // ranks):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    told = " ".join(s.explain().split())

found, expected = values(model), by_hand()
print(
    json.dumps(
        {
            "apart": max(
                float((one - other).abs().max()) for one, other in zip(found, expected, strict=True)
            ),
            "told": told,
            "layer": type(model[1][0]).__name__,
        }
    )
)
