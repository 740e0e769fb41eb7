import torch
from torchbus import session

with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork"):
    lone = torch.nn.Linear(2, 2, device="meta")
    lone(torch.ones(1, 2, device="meta"))  # nobody trains it
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, device="meta"))
    print("made")
    torch.optim.SGD(model.parameters(), lr=0.1)
