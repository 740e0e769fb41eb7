"""Scripts that import from their parent folder, and write by a path that climbs out of a package."""

from __future__ import annotations

import json

from torchbus_testing.forking import fork_script

from .verified import COMMAND, LOOP, verified

PATHS = """
import os
OUT = os.path.join(os.path.dirname(__file__), os.pardir, "out")
os.makedirs(OUT, exist_ok=True)
"""
SCRIPT = f"""
import os, sys
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pkg.paths import OUT
{LOOP}
torch.save(model.state_dict(), OUT + "/model.pt")
"""


def test_a_package_beside_the_script_writes_into_the_mirror(tmp_path) -> None:
    project = tmp_path / "project"  # whose parent no other test writes to
    (project / "pkg").mkdir(parents=True)
    (project / "pkg/paths.py").write_text(PATHS)
    verdict = verified(project, SCRIPT)
    assert verdict["status"] == 0, json.dumps(verdict, indent=1)
    assert not (project / "out").exists()


def test_a_script_imports_from_its_parent_folder(tmp_path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "trainer").mkdir()
    (tmp_path / "pkg/paths.py").write_text("OUT = '.'\n")
    assert verified(tmp_path / "trainer", SCRIPT)["status"] == 0


def test_nothing_is_imported_from_a_parent_folder_that_others_write_to(tmp_path) -> None:
    """Anybody may have put a module there, which the plain script would not import."""
    (tmp_path / "trainer").mkdir()
    tmp_path.chmod(0o1777)
    (tmp_path / "optional_module.py").write_text("raise SystemExit('planted')")
    script = "try:\n    import optional_module\nexcept ImportError:\n    pass\n" + LOOP
    assert verified(tmp_path / "trainer", script)["status"] == 0


def test_a_script_in_another_folder(tmp_path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "train.py").write_text(LOOP)
    result = fork_script(COMMAND, "--steps", "3", "../train.py", cwd=tmp_path / "runs")
    assert result.ok().stdout.startswith("the same numbers: 3 steps")
