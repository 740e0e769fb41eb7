import json

import torch
from meta_head import Rotary, alone, apart, found, made, numbers, opened, part, steps
from torch import nn
from torch.distributed.tensor import DTensor


def one_module_at_a_time(module):
    whole = [
        name
        for name, one in model.named_parameters()
        if not (one.is_meta or isinstance(one, DTensor))
    ]
    own = [name for name, one in module.named_parameters(recurse=False)]
    seen.append(len(whole) <= 1 + len(own) and len(own) > 0)
    for one in module.parameters(recurse=False):
        one.fill_(len(seen))


with opened(param_init_fn=one_module_at_a_time) as s:
    seen = []
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(3)])
    torch.optim.SGD(model.parameters(), lr=0.1)
    found["at a time"] = s.all_gather_object(
        [seen, [float(one[0]) for one in model.state_dict().values() if one.dim() == 1]]
    )

model = alone()
expected, whole = (
    numbers(model),
    {name: value.clone() for name, value in model.state_dict().items()},
)
trained = steps(model, torch.optim.Adam(model.parameters(), lr=0.1))


def leave_to_the_checkpoint(module):
    if isinstance(module, Rotary):
        module.reset_parameters()


for name, options in {
    "loaded": {},
    "left and loaded": {"param_init_fn": leave_to_the_checkpoint},
}.items():
    with opened(**options) as s:
        model, optimizer = made()
        model.eval()
        torch.manual_seed(5)
        found[f"{name} before"] = bool(model.state_dict()["embed.weight"].isnan().all())
        model.load_state_dict(whole)
        found[name] = [
            numbers(model).equal(expected),
            apart(steps(model, optimizer, part(s)), trained),
        ]
model, optimizer = made()
model.eval()
with opened() as s:
    found["made before the block"] = [
        numbers(model).equal(expected),
        apart(steps(model, optimizer, part(s)), trained),
    ]
found["after"] = [type(one) is nn.Parameter and not one.is_meta for one in model.parameters()]
print(json.dumps(found))
