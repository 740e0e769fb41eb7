"""A model with frozen layers and trained adapters beside them, and its loop."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Adapted(nn.Module):
    """A frozen layer, and LoRA by hand."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.a = nn.Linear(inputs, 4, bias=False)
        self.b = nn.Linear(4, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = Adapted(16, 24)
        self.down = Adapted(24, 16)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.blocks(x))


def make(dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    model = Net().to(device, dtype)
    return model, torch.optim.AdamW(trained(model), lr=0.02)


def trained(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def train(model, optimizer, batch_size, epochs=2):
    """The last batch of an epoch is smaller."""
    torch.manual_seed(1)
    head = model.head.weight
    data = TensorDataset(torch.randn(23, 16).to(head), torch.randint(3, (23,)).to(head.device))
    for _ in range(epochs):
        for x, y in DataLoader(data, batch_size=batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def values(model):
    """The trained parameters."""
    return {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def apart(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one.keys() | other.keys())


def bases(model):
    return {path: part for path, part in model.named_modules() if path.endswith(".base")}


def by_torchao(weight, name):
    """A tensor of torchao, with which a plain layer computes."""
    from torchao.quantization import Int8Tensor, PerRow, to_nf4

    return to_nf4(weight, 64, 2) if name == "nf4" else Int8Tensor.from_hp(weight, PerRow())


def by_bitsandbytes(weight, name):
    """The values that bitsandbytes makes of a weight."""
    import bitsandbytes.functional as kernels

    if name == "nf4":
        return kernels.dequantize_4bit(
            *kernels.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
        )
    return kernels.int8_vectorwise_dequant(*kernels.int8_vectorwise_quant(weight)[:2])


def quantize_by_hand(model, name, library="torchao"):
    quantised = by_torchao if library == "torchao" else by_bitsandbytes
    for layer in bases(model).values():
        weight = quantised(layer.weight.detach(), name)
        layer.weight = nn.Parameter(weight, requires_grad=False)


def by_hand(name, library="torchao", batch_size=6, epochs=2, dtype=torch.float32, device="cpu"):
    """One process without torchbus."""
    model, optimizer = make(dtype, device)
    quantize_by_hand(model, name, library)
    train(model, optimizer, batch_size, epochs)
    return values(model)
