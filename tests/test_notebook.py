"""ddp_notebook in a real notebook: a kernel, cells, their output."""

from __future__ import annotations

import sys
from textwrap import dedent

import nbformat
import pytest
from nbclient import NotebookClient

SETUP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
torch.set_default_dtype(torch.float64)

def data(batch_size):
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size)

def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)

def steps(model, optimizer, batch_size):
    for x, y in data(batch_size):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()

model, optimizer = make()
alone = make()
torch.randn(300, 300) @ torch.randn(300, 300)  # more than one thread of the kernel's has worked
"""
TRAIN = """
with session(strategy="ddp_notebook", devices=2, accelerator="cpu") as s:
    loss = steps(model, optimizer, 4)
    print("trained on", s.world_size, "ranks")
reference = steps(*alone, 8)
print(abs(loss - reference) < 1e-12, all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(model.parameters(), alone[0].parameters())))
"""
NO_FORK = """
torch.cuda.is_initialized = lambda: True
# model.cuda() in a comment is none
if torch.cuda.is_available():
    model.to("cuda")
"""
FAILS = """
with session(strategy="ddp_notebook", devices=2, accelerator="cpu") as s:
    if s.rank == 1:
        raise ValueError("a bad sample")
    steps(model, optimizer, 4)
"""


def outputs(*cells: str) -> list[str]:
    """What the cells write; the text of the error where one fails."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(dedent(cell)) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "", "language": "python"}
    NotebookClient(notebook, timeout=110, kernel_name="python3", allow_errors=True).execute()
    return ["".join(out.get("text") or out.get("evalue") or "" for out in cell.outputs) for cell in notebook.cells]


@pytest.mark.filterwarnings("ignore")  # jupyter's own
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.slow
def test_notebooks_that_ddp_could_not_run_in():
    setup, first, second, failed, third, used, refused = outputs(SETUP, TRAIN, TRAIN, FAILS, TRAIN, NO_FORK, TRAIN)
    assert setup == ""
    assert first == second == "trained on 2 ranks\nTrue True\n"  # nothing of rank 1; the kernel's model; again
    assert failed.endswith("rank 1 failed first: ValueError: a bad sample")
    assert third.startswith("trained on 2 ranks\n")
    assert used == "" and "CUDA is already initialised in this process: move the first" in refused
    assert 'the first line that uses it is cell 6, line 4: model.to("cuda")' in refused
