"""Goes on from a checkpoint, or ends early; prints how far it is from one process by hand."""

import json
import runpy
import sys
from pathlib import Path

import torch
from torchbus import session

LOOP = runpy.run_path(
    str(Path(__file__).parents[3] / "plugins" / "quantize" / "tests" / "scripts" / "adapted.py")
)
strategy, ranks, _, options = json.loads(sys.argv[1])
torch.set_num_threads(1)

with session(
    strategy=strategy,
    devices=ranks,
    accelerator="cpu",
    launch="fork",
    quantize="nf4",
    quantize_library="torchao",
    batch="global",
    **options,
) as s:
    model, optimizer = LOOP["make"](torch.float64)
    if "second" in sys.argv[1]:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        s.load("here")
    for epoch in s.epochs(2):
        LOOP["train"](model, optimizer, 6, epochs=1)
        if epoch == 0:
            s.save("here")
        if "first" in sys.argv[1]:
            break
print(
    LOOP["apart"](LOOP["values"](model), LOOP["by_hand"]("nf4", dtype=torch.float64))
    if "second" in sys.argv[1]
    else "saved"
)
