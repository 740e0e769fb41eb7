from pathlib import Path

from torchbus_testing.forking import fork_script


def test_statistics_are_rank_0s_whichever_model_is_frozen(tmp_path):
    script = Path(__file__).parent / "scripts" / "models_in_turn.py"
    result = fork_script(script, cwd=tmp_path, timeout_s=120)
    assert result.ok() and "alike True" in result.stdout


SHARED_STEM = """
import gc
import torch
from torch import nn
from torchbus import session

class Head(nn.Sequential):
    def __init__(self, stem, number):
        super().__init__(stem, nn.Linear(2, 1))
        self.register_buffer("number", torch.tensor(float(number)))

gc.disable()
with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
    stem = nn.Linear(3, 2)
    first = Head(stem, 1)
    if s.rank == 1:
        gc.collect()  # it lists what was there before in another order
    second = Head(stem, 2)
    optimizer = torch.optim.SGD([*first.parameters(), *second[1].parameters()], lr=0.1)
    for _ in range(2):
        (first(torch.ones(4, 3)) + second(torch.ones(4, 3))).mean().backward()
        optimizer.step()
    assert (first.number, second.number) == (1, 2), (first.number, second.number)
"""


def test_models_that_share_a_layer_get_their_own_buffers_on_every_rank():
    assert fork_script(SHARED_STEM).ok()


COLLECTED_ON_ONE_RANK = """
import gc
import torch
from torch import nn
from torchbus import session

def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(4, 3)).mean().backward()
        optimizer.step()

class InCycle(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)
        self.__dict__["itself"] = self

gc.disable()
with session(strategy="ddp", devices=2, accelerator="cpu", launch="fork") as s:
    model = InCycle()
    address = id(model)
    train(model)
    del model
    others = []
    if s.rank == 1:
        gc.collect()
        while id(model := InCycle.__new__(InCycle)) != address:
            others.append(model)
        others.clear()
        model.__init__()
    else:
        model = InCycle()
    train(model)
    train(model)
"""


def test_a_model_may_get_the_address_of_a_collected_one_on_one_rank():
    assert fork_script(COLLECTED_ON_ONE_RANK).ok()
