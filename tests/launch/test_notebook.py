"""ddp_notebook in a real notebook: a kernel, cells, their output."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

SCRIPTS = Path(__file__).parent / "scripts"

SETUP = (SCRIPTS / "notebook_head.py").read_text()
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
    import nbformat  # takes seconds, and only slow tests need it
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(dedent(cell)) for cell in cells]
    )
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "", "language": "python"}
    NotebookClient(notebook, timeout=110, kernel_name="python3", allow_errors=True).execute()
    return [
        "".join(out.get("text") or out.get("evalue") or "" for out in cell.outputs)
        for cell in notebook.cells
    ]


@pytest.mark.filterwarnings("ignore")  # jupyter's own
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.slow
def test_notebooks_that_ddp_could_not_run_in():
    setup, first, second, failed, third, used, refused = outputs(
        SETUP, TRAIN, TRAIN, FAILS, TRAIN, NO_FORK, TRAIN
    )
    assert setup == ""
    # nothing of rank 1; the kernel's model; again
    assert first == second == "trained on 2 ranks\nTrue True\n"
    assert failed.endswith("rank 1 failed first: ValueError: a bad sample")
    assert third.startswith("trained on 2 ranks\n")
    assert used == "" and "CUDA is already initialised in this process: move the first" in refused
    assert 'the first line that uses it is cell 6, line 4: model.to("cuda")' in refused
