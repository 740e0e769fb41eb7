"""Scripts that can't be compared: each is told why, with exit status 3.

None of them comes to a session.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from torchbus_testing.forking import fork_script

from .verified import COMMAND, LOOP, verified

SCRIPTS = {
    "ends before its first optimizer step": LOOP.replace("optimizer.step()", ""),
    "never calls backward()": "import torch\nprint(torch.ones(2).sum())",
    "fails without a session": LOOP.replace("optimizer.step()", "undefined"),
    "asks for input, and there is no terminal": "name = input('name? ')",
}


@pytest.mark.parametrize("words", SCRIPTS)
def test_it_is_told_why(words, tmp_path):
    verdict = verified(tmp_path, SCRIPTS[words])
    assert verdict["status"] == 3 and words in verdict["headline"] and verdict["first"] is None


def test_the_scripts_own_traceback_is_shown(tmp_path):
    verdict = verified(tmp_path, "def work():\n    return 1 / 0\n\nwork()\n")
    lines = verdict["traceback"].splitlines()
    assert lines[0].startswith("Traceback") and lines[-1] == "ZeroDivisionError: division by zero"
    assert "train.py" in lines[1] and "torchbus_verify" not in verdict["traceback"]


def test_writing_outside_is_refused_and_does_not_happen(tmp_path):
    source = "import sys\ntry:\n    open(sys.argv[1], 'w')\nexcept Exception:\n    pass\n" + LOOP
    verdict = verified(tmp_path, source, tmp_path / "out.txt")
    assert (
        verdict["status"] == 3
        and f"writes outside of its folder, to {tmp_path / 'out.txt'}" in verdict["headline"]
    )
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_file_that_is_not_there(tmp_path):
    (tmp_path / "train.py").write_text("")
    result = fork_script(COMMAND, "trian.py", cwd=tmp_path)
    assert (
        result.status == 3
        and "there is no file 'trian.py': did you mean train.py?" in result.stderr
    )


@pytest.mark.parametrize("words", [["--steps", "0", "train.py"], ["--stepz", "3", "train.py"], []])
def test_words_that_can_not_be_are_not_taken_for_wrong_numbers(words, tmp_path):
    (tmp_path / "train.py").write_text(LOOP)
    result = fork_script(COMMAND, *words, cwd=tmp_path)
    assert result.status == 3 and result.stderr.startswith("torchbus verify: ")


def test_under_a_launcher_it_is_refused(tmp_path):
    (tmp_path / "train.py").write_text("")
    source = "import os\nos.environ['WORLD_SIZE'] = '2'\n" + COMMAND
    result = fork_script(source, "train.py", cwd=tmp_path)
    assert (
        result.status == 3
        and "run it outside of torchrun, mpirun or srun (WORLD_SIZE is set)" in result.stderr
    )


def test_a_session_that_can_not_begin(tmp_path):
    (tmp_path / "train.py").write_text(LOOP)
    result = fork_script(COMMAND, "--strategy", "nonsense", "train.py", cwd=tmp_path, timeout_s=200)
    assert result.status == 3 and "fails only under the session" in result.stdout
    assert "unknown strategy 'nonsense'" in result.stdout


SECRET = "0f9e8d7c6b5a49382716f0e1d2c3b4a5968778ab"
LEAKS = {
    "dies": "os.write(2, KEY); os._exit(3)",
    "prints": "print(KEY.decode(), torch.rand(1).item() if dist.is_initialized() else 0)",
    "names a parameter": "model.register_parameter(KEY.decode(), torch.nn.Parameter(torch.ones(1)))",
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_secret_that_the_script_shows_is_hidden(tmp_path: Path, leak: str) -> None:
    head = (
        "import os, torch, torch.distributed as dist\nKEY = os.environ['WANDB_API_KEY'].encode()\n"
    )
    script = tmp_path / "leaks.py"
    script.write_text(head + LOOP.replace("for ", f"{LEAKS[leak]}\nfor ", 1))
    command = f"import os\nos.environ['WANDB_API_KEY'] = {SECRET!r}\n" + COMMAND
    for words in ((), ("--json",)):
        result = fork_script(command, *words, "--steps", "2", str(script), cwd=tmp_path)
        assert SECRET not in result.stdout + result.stderr
