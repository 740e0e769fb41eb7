import json

import torch
import writes_head as head
from torchbus import session

torch.set_default_dtype(torch.float32)
found = []
for write in (head.look, lambda weight: None):
    with session(
        strategy="fsdp", devices=2, accelerator="cpu", launch="fork", mixed_precision="bf16"
    ):
        torch.manual_seed(0)
        head.X, head.Y = head.X.float(), head.Y.float()
        found.append(head.train(head.Net(write), 3))
print(json.dumps(max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))))
