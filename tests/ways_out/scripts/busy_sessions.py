import gc
import sys

import torch
from torchbus import session

gc.freeze()  # a session looks through all objects; those of torch need not be among them

for number in range(int(sys.argv[1])):
    try:
        with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
            net = torch.nn.Linear(3, 1)
            for step in range(4):
                net(torch.randn(4, 3)).mean().backward()
                if number % 4 == 3 and step == 2 and s.rank == 1:
                    raise ValueError("boom")
            if number % 4 == 2:
                s.barrier()
            s.all_gather_object([number])
        print("end")
    except Exception as error:
        print(type(error).__name__, "boom" in str(error))
