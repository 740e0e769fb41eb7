"""`torchbus run SCRIPT` does what `python SCRIPT` does, seen from the script and from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"

Outcome = tuple[int, str, str]

FACTS = (SCRIPTS / "cli_facts.py").read_text()
ENDS = {
    "raises": "def f():\n    try: {}['x']\n    except KeyError as e: raise ValueError('bad') from e\nf()",
    "syntax": "x = 1\ndef f(:\n    pass",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "own_hook": "import sys\nsys.excepthook = lambda kind, error, trace: print(kind, trace.tb_frame.f_code.co_filename)\n1 / 0",
}


def run(*words: object, cwd: Path) -> Outcome:
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=100
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A script, a module of a package and a folder with a __main__, each beside a module that it
    imports.
    """
    for folder in (tmp_path / "src", tmp_path / "src" / "app"):
        folder.mkdir()
        (folder / "neighbour.py").write_text("there = __name__")
    (tmp_path / "src" / "train.py").write_text(FACTS)
    (tmp_path / "src" / "app" / "__init__.py").touch()
    (tmp_path / "src" / "app" / "__main__.py").write_text(FACTS)
    (tmp_path / "src" / "app" / "job.py").write_text(FACTS)
    return tmp_path


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("program", "folder"),
    [
        (["src/train.py"], "."),
        (["-m", "app.job"], "src"),
        (["-m", "app"], "src"),
        (["src/app"], "."),
    ],
)
def test_the_script_sees_what_python_shows_it(
    project: Path, program: list[str], folder: str
) -> None:
    words = [*program, "a.b=c", "+x=[1,2]", "--devices", "7", "-m", "--", "-o"]
    plain = run(*words, cwd=project / folder)
    assert plain[0] == 0, plain
    assert json.loads(plain[1])[0][1:] == words[len(program) :]
    assert run("-m", "torchbus", "run", *words, cwd=project / folder) == plain


@pytest.mark.share(4)
@pytest.mark.parametrize("way", ENDS)
def test_it_ends_as_under_python(tmp_path: Path, way: str) -> None:
    script = tmp_path / f"{way}.py"
    script.write_text(ENDS[way])
    assert run("-m", "torchbus", "run", script, cwd=tmp_path) == run(script, cwd=tmp_path)


def test_the_session_is_told_the_options(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import torch
from torchbus.session import current
model = torch.nn.Linear(1, 1)
s = current()
print({name: s._context.options[name] for name in ("devices", "accelerator", "launch", "verbose", "timeout_s", "capture")})
""")
    options = [
        "--devices",
        "1",
        "--accelerator=cpu",
        "--launch",
        "fork",
        "--verbose",
        "-o",
        "timeout_s=7.5",
        "-o",
        "capture=False",
    ]
    status, output, errors = run("-m", "torchbus", "run", *options, "--", script, cwd=tmp_path)
    assert (status, errors) == (0, "")
    expected = {
        "devices": 1,
        "accelerator": "cpu",
        "launch": "fork",
        "verbose": True,
        "timeout_s": 7.5,
        "capture": False,
    }
    assert output.startswith(f"{expected}\ntorchbus ")
    assert "model: Linear, 2 parameters" in output


CALLS = (SCRIPTS / "cli_calls.py").read_text()
BAD = {
    "rnu x.py": "torchbus: unknown command 'rnu': did you mean 'run'",
    "--devices 2": "torchbus: --devices is not a command: options come after it, as in torchbus run --devices 2 train.py",
    "run": "torchbus run: which script? write torchbus run [OPTION]... SCRIPT [ARG]... (see torchbus run --help)",
    "run trian.py": "torchbus run: there is no file 'trian.py': did you mean train.py?",
    "run no/such.py": "torchbus run: there is no file 'no/such.py'",
    "run empty": "torchbus run: 'empty' has no __main__.py",
    "run -m empty": "torchbus run: there is no module 'empty' in {cwd} or among the installed ones",
    "run -m nothing.here": "torchbus run: there is no module 'nothing.here' in {cwd} or among the installed ones",
    "run -m train.py": "torchbus run: -m takes the name of a module: leave it out to run the file train.py",
    "run --device 2 train.py": "torchbus run: unknown option '--device': did you mean --devices? (see torchbus run --help)",
    "run --launch spawn train.py": "torchbus run: argument --launch: invalid choice: 'spawn'",
    "run -o sync_loss train.py": "torchbus run: argument -o/--option: 'sync_loss' is not KEY=VALUE, as in -o sync_loss=False",
    "run -o devices=1 --devices 2 train.py": "torchbus run: devices is given twice, as an option of the command and by -o",
    "run --devices -2 train.py": "torchbus run: devices=-2 is negative",
    "run -o launhc=1 train.py": "torchbus run: unknown option 'launhc': did you mean 'launch'",
    "run --strategy dpd train.py": "torchbus run: unknown strategy 'dpd': did you mean 'dp' or 'ddp'?",
    "run --plugin nothing train.py": "torchbus run: unknown plugin 'nothing': known are",
    "run --num-nodes 2 -o replace_sampler=False --strategy ddp x.py": "torchbus run: there is no file 'x.py'",
    "plugins --jsn": "torchbus plugins: unknown option '--jsn': did you mean --json? (see torchbus plugins --help)",
    "plugins surplus": "torchbus plugins: unknown option 'surplus'",
    "doctor --timeout soon": "torchbus doctor: argument --timeout: invalid float value: 'soon'",
}


def test_bad_input_is_answered_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('train.py must not run')")
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CALLS],
        input=json.dumps([call.split() for call in BAD]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    for (call, expected), (status, _, errors) in zip(
        BAD.items(), json.loads(done.stdout), strict=True
    ):
        assert status == 2, call
        assert errors.startswith(expected.format(cwd=tmp_path)), (call, errors)
        assert errors.count("\n") == 1, (call, errors)
