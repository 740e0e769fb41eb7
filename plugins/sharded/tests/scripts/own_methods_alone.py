from own_methods_head import train
from torchbus import session


def largest_of_one_rank(optimizer):
    optimizer.zero_grad()
    optimizer.step()
    if s.rank == 0:
        optimizer.largest()


with session(strategy="ddp_sharded", devices=2, accelerator="cpu", launch="fork") as s:
    train(3, largest_of_one_rank)
