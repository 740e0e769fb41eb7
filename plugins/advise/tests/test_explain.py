"""``torchbus explain``: the script is explained, and does not train."""

from __future__ import annotations

from pathlib import Path

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result

SCRIPTS = Path(__file__).parent / "scripts"

COMMAND = """
import sys
from torchbus_cli.main import main
sys.exit(main(["explain", *sys.argv[1:]]))
"""
LOOP = (SCRIPTS / "explain_loop.py").read_text()


def explain(folder: Path, script: str, *words: str) -> Result:
    (folder / "train.py").write_text(script)
    return fork_script(COMMAND, *words, "train.py", cwd=folder)


def test_it_is_explained_and_ends_before_it_trains(tmp_path: Path) -> None:
    result = explain(tmp_path, LOOP, "--strategy", "None")
    assert result.ok() and not (tmp_path / "trained").exists()
    assert "model: Linear, 4 parameters in 2 tensors" in result.stdout
    assert "optimizer: SGD, 2 tensors, lr 0.1" in result.stdout
    assert "by hand     nothing" in result.stdout


def test_two_ranks_on_a_machine_without_a_gpu(tmp_path: Path) -> None:
    assert "2, this is rank 0 on cpu" in explain(tmp_path, LOOP).stdout
    assert "3, this is rank 0 on cpu" in explain(tmp_path, LOOP, "-o", "devices=3").stdout


def test_a_script_with_a_session_is_explained_in_that_one(tmp_path: Path) -> None:
    body = LOOP.split("\n\n", 1)[1].replace("\n", "\n    ")
    own = "from torchbus import session\n\nwith session(strategy=None, timeout_s=7):\n    "
    result = explain(tmp_path, LOOP.split("\n\n", 1)[0] + "\n" + own + body)
    assert result.ok() and result.stderr == "" and not (tmp_path / "trained").exists()
    assert "model: Linear, 4 parameters in 2 tensors" in result.stdout
    result = explain(
        tmp_path, (tmp_path / "train.py").read_text(), "--devices", "3", "-o", "seed=1"
    )
    assert result.ok() and result.stderr.strip() == (
        "torchbus explain: the script opens a session itself, so these options of the command"
        " have no effect: devices, seed"
    )


def test_a_script_that_never_calls_backward_has_nothing_to_explain(tmp_path: Path) -> None:
    result = explain(tmp_path, "print('evaluated')", "--strategy", "None")
    assert result.ok(3) and "never called backward" in result.stderr


def test_a_script_that_ends_by_itself_keeps_its_status(tmp_path: Path) -> None:
    assert explain(tmp_path, "import sys\nsys.exit(5)", "--strategy", "None").ok(5)


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    result = fork_script(COMMAND, "trian.py", cwd=tmp_path)
    assert result.ok(2) and "there is no file 'trian.py'" in result.stderr
