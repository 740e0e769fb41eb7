"""The scripts of the gallery train on two ranks, and draw their pictures."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from torchbus_testing.scripts import run

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path for path in (ROOT / "examples/gallery").glob("*.py") if path.stem != "pictures"
)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_of_the_gallery_draws_its_picture(script: Path, tmp_path: Path) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": ""}
    result = run([sys.executable, str(script)], cwd=tmp_path, env=environment, timeout_s=280).ok()
    assert re.search(r"\d", result.stdout)
    assert (tmp_path / f"{script.stem}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_notebook_of_the_gallery_runs(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "examples/gallery/notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # none are committed
    shutil.copy(ROOT / "examples/gallery/pictures.py", tmp_path)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=280, kernel_name="python3", resources=where).execute()
    told = str([cell.get("outputs") for cell in notebook.cells])
    assert "trained on 2 ranks" in told and "image/png" in told
    (last,) = re.findall(r"accuracy [\d.]+ at first, ([\d.]+) at last", told)
    assert float(last) > 0.9


def test_the_page_shows_each_script_and_picture() -> None:
    page = (ROOT / "docs/gallery.md").read_text("utf-8")
    for script in SCRIPTS:
        assert f"(../examples/gallery/{script.name})" in page
        assert (
            f"(gallery/{script.stem}.png)" in page
            and (ROOT / f"docs/gallery/{script.stem}.png").is_file()
        )
