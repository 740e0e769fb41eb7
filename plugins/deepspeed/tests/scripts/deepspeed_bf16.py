"""Precisions on a processor that has fp16: of the config, or float64 of the script.

Under a config in half precision, the optimizer's parts are in float32.
"""

import json
import sys

import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed_head import DATA, F, batches, difference, found, net, opened


def train(size):
    torch.manual_seed(1)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for x, y in batches(size):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).to(y.dtype), y)
        loss.backward()
        optimizer.step()
    return torch.cat([value.to(DTYPE).reshape(-1) for value in model.state_dict().values()]), model


SECTIONS = {
    "bf16": {"enabled": True},
    "fp16": {"enabled": True, "initial_scale_power": 8},  # nothing overflows
}
NAME = sys.argv[2]
DTYPE = torch.float64 if NAME == "float64" else torch.float32
torch.set_default_dtype(DTYPE)
DATA.tensors = tuple(one.to(DTYPE) for one in DATA.tensors)
CPU_Accelerator.is_fp16_supported = lambda self: True  # as on a processor with AVX512-FP16
whole, _ = train(8)
with opened(sys.argv[1], 2, config={NAME: SECTIONS[NAME]} if NAME in SECTIONS else {}):
    parts, model = train(4)
found["apart"] = difference(whole, parts)
found["dtypes"] = sorted({str(one.dtype) for one in model.parameters()})
print(json.dumps(found))
