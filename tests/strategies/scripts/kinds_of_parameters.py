"""Small models with parameters of unusual kinds under one strategy, each against one process.

Prints, for each kind, how far losses and parameters are apart, or what refused it.
"""

import ast
import json
import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import TorchbusError

warnings.simplefilter("ignore")
STRATEGY, RANKS, OPTIONS = sys.argv[1], int(sys.argv[2]), ast.literal_eval(sys.argv[3])
SPECIAL = {
    "no dimension": lambda: nn.Parameter(torch.tensor(0.5)),
    "one element": lambda: nn.Parameter(torch.full((1,), 0.5)),
    "empty": lambda: nn.Parameter(torch.zeros(0, 3)),
    "complex": lambda: nn.Parameter(torch.randn(5, dtype=torch.cfloat)),
}


class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.up, self.down = kind, nn.Linear(8, 16), nn.Linear(16, 8)
        if kind in SPECIAL:
            self.special = SPECIAL[kind]()
        if kind == "transposed":
            self.up.weight = nn.Parameter(0.3 * torch.randn(8, 16).t())
        if kind == "channels_last":
            self.conv = nn.Conv2d(2, 8, 2)

    def forward(self, x):
        h = self.down(torch.tanh(self.up(x)))
        if self.kind in ("no dimension", "one element"):
            h = h * self.special
        if self.kind == "empty":
            h = h + self.special.sum()
        if self.kind == "complex":
            h = torch.fft.irfft(torch.fft.rfft(h) * self.special, n=8)
        if self.kind == "channels_last":
            image = x.view(-1, 2, 2, 2).to(memory_format=torch.channels_last)
            h = h + self.conv(image).flatten(1)
        return x + h


class Net(nn.Module):
    def __init__(self, kind=""):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 2)
        self.blocks = nn.ModuleList(Block(kind) for _ in range(2))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class TiedHead(Net):
    """Its head is its first layer, as of a language model."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.first.weight

    def forward(self, x):
        return super().forward((4 * x + 8).long().clamp(0, 15)).mean(1)[:, :2].clone()


def tied_blocks():
    net = Net()
    net.blocks[0].up.weight = net.blocks[1].up.weight
    return net


def shared_layer():
    net = Net()
    net.blocks[1].down = net.blocks[0].down
    return net


def adapters():
    """Adapters by replaced forwards, on a frozen model with a tied head."""
    net = TiedHead()
    for layer in [block.down for block in net.blocks]:
        layer.adapter = nn.Sequential(nn.Linear(16, 2, bias=False), nn.Linear(2, 8, bias=False))
        layer.forward = lambda x, old=layer.forward, layer=layer: old(x) + layer.adapter(x)
    return frozen(net, lambda name: "adapter" not in name)


def frozen(net, which):
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(not which(name))
    return net


MODELS = {
    "plain": Net,
    **{kind: lambda kind=kind: Net(kind) for kind in (*SPECIAL, "transposed")},
    "channels_last": lambda: Net("channels_last").to(memory_format=torch.channels_last),
    "tied head": TiedHead,
    "tied blocks": tied_blocks,
    "shared layer": shared_layer,
    "adapters": adapters,
    "frozen blocks": lambda: frozen(Net(), lambda name: "blocks" in name),
    "frozen without a dimension": lambda: frozen(Net("no dimension"), lambda n: "special" in n),
    "frozen complex": lambda: frozen(Net("complex"), lambda name: "special" in name),
}
CALLS = (
    *("forward called", "inference first", "no_grad first"),
    *("compiled before", "compiled after", "in place before", "in place after"),
)


def train(kind):
    torch.manual_seed(0)
    model = net = MODELS.get(kind, Net)()
    if kind == "compiled before":
        model = torch.compile(net, backend="eager")
    if kind == "in place before":
        net.compile(backend="eager")
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    if kind == "compiled after":
        model = torch.compile(net, backend="eager")
    if kind == "in place after":
        net.compile(backend="eager")
    generator = torch.Generator().manual_seed(1)
    data = [torch.randn(20, width, generator=generator) for width in (6, 2)]
    loader = DataLoader(TensorDataset(*data), batch_size=8)
    losses = []
    if kind in ("inference first", "no_grad first"):
        with torch.inference_mode() if kind == "inference first" else torch.no_grad():
            losses = [float((model(x) - y).square().mean()) for x, y in loader]
    call = model.forward if kind == "forward called" else model
    for x, y in loader:
        optimizer.zero_grad()
        loss = (call(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses), {name: one.clone() for name, one in net.state_dict().items()}, net


def apart(ours, alone):
    assert list(ours[1]) == list(alone[1])
    for one, other in zip(ours[2].parameters(), alone[2].parameters(), strict=True):
        assert one.stride() == other.stride() or not ours[3], (one.stride(), other.stride())
    pairs = [(ours[0], alone[0]), *((one, alone[1][name]) for name, one in ours[1].items())]
    return max(float((one - other).abs().max()) for one, other in pairs if one.numel())


found = {}
for kind in sys.argv[4:] or (*MODELS, *CALLS):
    alone = train(kind)
    options = {"devices": RANKS, "accelerator": "cpu", "launch": "fork", "batch": "global"}
    try:
        with session(strategy=STRATEGY, **options, **OPTIONS):
            ours = train(kind)
        found[kind] = apart((*ours, STRATEGY == "fsdp"), alone)
    except TorchbusError as error:
        found[kind] = f"{type(error).__name__}: {error}"
    except Exception as error:
        found[kind] = f"unexpected {type(error).__name__}: {error}"
print(json.dumps(found))
