"""`torchbus run --config run.toml`, and options of plugins that are given as flags."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchbus_cli.main import main
from torchbus_testing.scripts import run

EXPLAIN = "import torchbus\nprint(torchbus.current().explain())"
COMMAND = [sys.executable, "-m", "torchbus", "run", "--config", "run.toml"]


def test_a_file_gives_options_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EXPLAIN)
    (tmp_path / "run.toml").write_text(
        'devices = 3\naccelerator = "cpu"\ntimeout_s = 7.5\nprefetch = 0\n'
    )
    words = ["--devices", "0", "-o", "prefetch=1", "train.py"]
    result = run([*COMMAND, *words], cwd=tmp_path)
    assert result.ok(), result.stderr
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert "ranks       1, this is rank 0 on cpu" in result.stdout
    assert "options     from run.toml: accelerator='cpu', timeout_s=7.5" in lines
    assert "from the command line: devices=0, not 3 of run.toml" in lines
    assert "from the command line: prefetch=1, not 0 of run.toml" in lines


BAD = {
    "launhc = 'fork'": "run.toml: unknown option 'launhc': did you mean 'launch'",
    "gradient_accumulation_steps = 4": "run.toml: unknown option 'gradient_accumulation_steps': here it is called accumulate_grad_batches=",
    "num_nodes = '2'": "num_nodes='2' is a str: it must be a number of machines (num_nodes: from run.toml)",
    "launch = 'folk'": "launch='folk' is unknown: use 'auto' or 'script' or 'fork' or 'spawn' (launch: from run.toml)",
    "[session]\ndevices = 2": "run.toml: [session] is a table: options of the session are written without one, as in devices = 2",
    "plugins = 'gpu'": "run.toml: plugins = 'gpu': it must be a list of names",
    "plugins = ['nothing']": "unknown plugin 'nothing'",
    "devices = ": "run.toml is not valid TOML, and no other format is read: Invalid value",
    None: "run.toml can't be read: No such file or directory",
}


@pytest.mark.parametrize("text", BAD, ids=str)
def test_what_is_wrong_in_a_file_is_told_with_its_name(
    text: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("train.py").write_text("raise SystemExit('train.py must not run')")
    if text is not None:
        Path("run.toml").write_text(text)
    assert main(["run", "--config", "run.toml", "train.py"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"torchbus run: {BAD[text]}") and told.count("\n") == 1


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


INSTEAD = {
    "a pipe": (os.mkfifo, "run.toml can't be read: it is not a regular file"),
    "a device": (
        lambda path: path.symlink_to("/dev/zero"),
        "run.toml can't be read: it is not a regular file",
    ),
    "a folder": (Path.mkdir, "run.toml can't be read: Is a directory"),
    "much": (sparse, "run.toml can't be read: it has more than 16 MB"),
    "long number": (
        lambda path: path.write_text(f"a = {'1' * 5_000}"),
        "run.toml is not valid TOML, and no other format is read: ",
    ),
    "deep": (
        lambda path: path.write_text(f"a={'[' * 99_999}"),
        "run.toml is not valid TOML, and no other format is read: ",
    ),
}


@pytest.mark.parametrize("what", INSTEAD)
def test_what_is_no_file_of_options_keeps_no_command_waiting(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    make, words = INSTEAD[what]
    make(Path("run.toml"))
    Path("train.py").touch()
    assert main(["run", "--config", "run.toml", "train.py"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"torchbus run: {words}") and shown.count("\n") == 1


def test_the_shell_may_give_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by ``--config <(command)``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("train.py").touch()
    reader, writer = os.pipe()
    os.write(writer, b"launhc = 'fork'")
    os.close(writer)
    assert main(["run", "--config", f"/dev/fd/{reader}", "train.py"]) == 2
    os.close(reader)
    assert "unknown option 'launhc'" in capsys.readouterr().err


def test_a_script_with_a_session_of_its_own_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from torchbus import session\nwith session(): pass")
    (tmp_path / "run.toml").write_text("devices = 0\n")
    result = run([*COMMAND, "train.py"], cwd=tmp_path)
    assert result.status == 1
    assert result.stderr.endswith(
        "UsageError: a session inside a session: `torchbus run` has begun one: run the script by `python`\n"
    )


FLAGS = {
    "--timeout-s 3": "'--timeout-s' is written -o timeout_s=3 (see torchbus run --help)",
    "--hang-timeout=3": "'--hang-timeout=3' is written -o hang_timeout=3 (see torchbus run --help)",
    "--max-grad-norm 1": "unknown option 'max_grad_norm': here it is called gradient_clip_val=; options of plugins are written -o NAME=VALUE",
    "--loggr local": "unknown option '--loggr': did you mean --logger",
}


@pytest.mark.parametrize("words", FLAGS)
def test_an_option_without_a_flag_is_told_how_to_be_written(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["run", *words.split(), "train.py"])
    assert capsys.readouterr().err.startswith(f"torchbus run: {FLAGS[words]}")


COMPLETE = """
source completion.bash
words() {
    COMP_WORDS=(torchbus "$@"); COMP_CWORD=$#; COMPREPLY=()
    _shtab_torchbus torchbus "${@: -1}" "${COMP_WORDS[$# - 1]}"
    echo "${COMPREPLY[@]}"
}
complete -p torchbus
words plu
words run --dev
words run --launch ""
words run -o hang
words run --config tr
words run --devices 2 tr
"""


def test_bash_completes_commands_options_values_and_files(tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    (tmp_path / "train.toml").touch()
    with (tmp_path / "completion.bash").open("w") as script:
        command = [sys.executable, "-m", "torchbus", "completion", "bash"]
        subprocess.run(command, stdout=script, check=True, timeout=100)
    told = run(["bash", "--norc", "-c", COMPLETE], cwd=tmp_path)
    assert told.ok() and not told.stderr, told.stderr
    assert told.stdout.splitlines()[1:] == [
        "plugins",
        "--devices",
        "auto script fork",
        "hang_timeout=",
        "train.toml",
        "train.toml",
    ]


@pytest.mark.slow
def test_completion_needs_shtab(tmp_path: Path) -> None:
    (tmp_path / "shtab.py").write_text("raise ModuleNotFoundError('shtab')")
    command = [sys.executable, "-m", "torchbus", "completion", "bash"]
    told = run(command, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    assert told.status == 1
    assert told.stderr == (
        "torchbus completion: completion scripts are written by shtab: pip install shtab\n"
    )
