import json

from options_head import apart, made, part, steps
from torchbus import session

with session(strategy="fsdp", accelerator="cpu", hybrid=True, replace_sampler=False) as s:
    model, optimizer = made()
    ours = steps(model, optimizer, part(s))
    others = s.all_gather(ours)
    weight = model.out.weight
    kept = (
        weight.to_local().numel() / weight.numel(),
        [type(one).__name__ for one in weight.placements],
    )
if s.is_main:
    alone, lone = made()
    print(
        json.dumps(
            [
                apart(ours, steps(alone, lone, slice(None))),
                all(ours.equal(other) for other in others),
                *kept,
            ]
        )
    )
