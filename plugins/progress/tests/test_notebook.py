"""In a real Jupyter kernel. Needs ipykernel and nbclient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"

CELL = (SCRIPTS / "notebook_cell.py").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_bar_is_an_output_of_its_own() -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(notebook, timeout=110, kernel_name="python3").execute()
    outputs = notebook.cells[0].outputs
    assert [one.text for one in outputs if one.output_type == "stream"] == ["mine\n"]
    (shown,) = [one.data["text/html"] for one in outputs if one.output_type == "display_data"]
    assert shown.startswith("<code>1 epoch: 4 steps, ") and "loss 1.000" in shown
