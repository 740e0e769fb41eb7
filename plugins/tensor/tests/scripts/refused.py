"""Each refusal: the first line of what the session or the loop raises."""

import io
import json

import torch
from tensor_head import PLAN, Gpt, Mlp, numbers, opened, train, words
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

found = {}


def refused(name, make=Mlp, ranks=2, data=None, **options):
    try:
        with opened(ranks, **options):
            train(make, data or numbers(8), 8, "sgd", epochs=1)
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
    else:
        found[name] = "not refused"


refused("no module", plan={"blocks.*.upp": "colwise"})
refused("features", ranks=2, plan={"last": "colwise", "first": "rowwise"})
refused("kind", plan={"blocks.*.norm": "colwise"})
refused("heads", make=lambda: Gpt(), ranks=4, data=words(4), plan={"blocks.*.attn.q": "colwise"})
refused("shared", make=lambda: Gpt(), ranks=2, data=words(4), plan={"words": "colwise"})
refused("style", plan={"last": "diagonal"})
refused("type", plan=["last"])
refused("value", plan={"last": 3})
refused("tp", ranks=3, plan=PLAN, tp=2)
refused("tp type", plan=PLAN, tp="two")
refused("auto", make=lambda: torch.nn.Sequential(torch.nn.Linear(5, 2)), plan="auto")
local = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
refused("dropout", make=lambda: Gpt(0.1), data=words(4), plan=local)


class Unsaid(torch.nn.Module):
    """An attention that does not say how many heads it has."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(5, 5) for _ in range(4))

    def forward(self, x):
        return self.o(self.q(x) + self.k(x) + self.v(x))[:, :2]


class Hooked(Mlp):
    def __init__(self):
        super().__init__()
        self.blocks[0].up.weight.register_hook(lambda gradient: None)


refused("auto heads", make=Unsaid, plan="auto")
refused("hooks", make=Hooked, plan=PLAN)


class Unlike(Mlp):
    def forward(self, x):
        return super().forward(x) * (1 + torch.distributed.get_rank())


refused("losses", make=Unlike, plan=PLAN)
with opened(2, plan=PLAN):
    from torch.distributed.tensor import DTensor

    mesh = next(
        p for p in train(Mlp, numbers(8), 8, epochs=1)[0].parameters() if isinstance(p, DTensor)
    )
    q = DTensor.from_local(torch.ones(1, 2, 4, 6), mesh.device_mesh)
    try:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    except Exception as error:
        found["by heads"] = f"{type(error).__name__}: {error}"
with opened(2, plan=PLAN):
    model, _, _ = train(Mlp, numbers(8), 8, "sgd", epochs=1)
    x, y = numbers(8).tensors
    for name, act in (
        ("lbfgs", lambda: torch.optim.LBFGS(model.parameters())),
        ("grad", lambda: torch.autograd.grad(model(x).sum(), model.blocks[0].up.weight)),
        ("create_graph", lambda: model(x).sum().backward(create_graph=True)),
    ):
        try:
            act()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"


def by_hand():
    model = Mlp()
    model(torch.ones(2, 5)).sum().backward()


def wrapped_later():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    torch.optim.SGD(model.parameters(), lr=0.1)
    whole = torch.nn.Sequential(model[0], torch.nn.Linear(4, 4))
    torch.optim.SGD(whole.parameters(), lr=0.1)


def not_offered():
    model = Mlp()
    whole = model.blocks[0].up.weight.detach().clone()
    torch.optim.SGD(model.parameters(), lr=0.1)
    whole.fmod_(model.blocks[0].up.weight.detach())


def by_parameter():
    model = Mlp()
    kept = {p: p.detach().clone() for p in model.parameters()}
    torch.optim.SGD(model.parameters(), lr=0.1)
    [kept[p] for p in model.parameters()]


def pickled():
    model = Mlp()
    torch.optim.SGD(model.parameters(), lr=0.1)
    torch.save(model, io.BytesIO())


for name, loop, plan in (
    ("pickled", pickled, PLAN),
    ("by hand", by_hand, PLAN),
    ("wrapped later", wrapped_later, {"0": "colwise"}),
    ("not offered", not_offered, PLAN),
    ("by parameter", by_parameter, PLAN),
):
    try:
        with opened(2, plan=plan):
            loop()
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
