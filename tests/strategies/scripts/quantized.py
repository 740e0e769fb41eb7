"""Trains adapters beside quantised layers, and prints how far it is from one process by hand."""

import io
import json
import runpy
import sys
from pathlib import Path

import torch
from torchbus import session

LOOP = runpy.run_path(
    str(Path(__file__).parents[3] / "plugins" / "quantize" / "tests" / "scripts" / "adapted.py")
)
strategy, ranks, batch_size, name, library, options = json.loads(sys.argv[1])
dtype = torch.float64 if library == "torchao" and name == "nf4" else torch.float32
torch.set_num_threads(1)

with session(
    strategy=strategy,
    devices=ranks,
    accelerator="cpu",
    launch="fork",
    quantize=name,
    quantize_library=library,
    **options,
) as s:
    model, optimizer = LOOP["make"](dtype)
    here = sum(
        part.weight.to_local().nbytes if hasattr(part.weight, "to_local") else part.weight.nbytes
        for part in LOOP["bases"](model).values()
    )
    LOOP["train"](model, optimizer, batch_size)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    told = s.explain()
    file.seek(0)
    same = s.all_gather_object(
        {path: one.sum().item() for path, one in torch.load(file, weights_only=True).items()}
    )
print(
    json.dumps(
        {
            "apart": LOOP["apart"](
                LOOP["values"](model), LOOP["by_hand"](name, library, dtype=dtype)
            ),
            "told": " ".join(told.split()),
            "here": here,
            "ranks_alike": all(one == same[0] for one in same),
            "dtypes": sorted({str(part.weight.dtype) for part in LOOP["bases"](model).values()}),
            "whole": sum(part.weight.nbytes for part in LOOP["bases"](model).values()),
        }
    )
)
