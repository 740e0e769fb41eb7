"""leaving_by_signal.py RANKS NUMBER WHOM: in mid-course, the rank WHOM gets the signal NUMBER, or
with NUMBER "call" another thread of it calls the verb.
"""

import hashlib
import os
import sys
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

ranks, asked, whom = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.manual_seed(0)
with session(
    strategy="ddp", devices=ranks, launch="fork", checkpoint="checkpoints", every_n_epochs=100
) as s:
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(
        TensorDataset(torch.randn(64, 2)), batch_size=2, shuffle=True, num_workers=1
    )
    for epoch in range(3):
        for i, (x,) in enumerate(loader):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if asked != "0" and epoch == 1 and i == 3 and s.rank == whom:
                if asked == "call":
                    threading.Thread(target=s.save_and_leave).start()
                else:
                    os.kill(os.getpid(), int(asked))
print(
    "end",
    hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest(),
)
