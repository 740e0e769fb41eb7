"""The helpers that other tests rely on."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request

import pytest
import torch
from torchbus import session

import torchbus_testing as testing
from torchbus_testing.processes import stretched, until_lost
from torchbus_testing.recorder import Recorder
from torchbus_testing.scripts import run_script
from torchbus_testing.state import assert_torch_unchanged, torch_state


def test_result_of_a_script():
    result = run_script(
        """
        import os, sys
        print(sys.argv[1:], os.environ["ANSWER"], os.environ.get("HOME"))
        print("bad", file=sys.stderr)
        sys.exit(3)
        """,
        1,
        "two words",
        env={"ANSWER": "42", "HOME": None},
    )
    assert result.ok(3)
    assert result.stdout == "['1', 'two words'] 42 None\n"
    assert result.stderr == "bad\n"
    with pytest.raises(AssertionError, match=r"exit status 3 \(expected 0\)(.|\n)*bad"):
        result.ok()


def test_what_a_script_found():
    source = "import sys; print('begun'); print('[1, 2]'); sys.exit(len(sys.argv) - 1)"
    assert run_script(source).json() == [1, 2]
    with pytest.raises(AssertionError, match="exit status 1"):
        run_script(source, "fail").json()


@pytest.mark.parametrize(("processes_per_core", "seconds"), [(0.5, 2), (1, 2), (10, 20)])
def test_a_loaded_machine_gets_more_time(processes_per_core, seconds, monkeypatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (processes_per_core * 4, 0.0, 0.0))
    assert stretched(2) == seconds


def test_a_script_that_hangs_is_killed_with_its_children():
    source = """
        import subprocess, sys, time
        print("begun")
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        time.sleep(60)
    """
    started_s = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no end within 1 s(.|\n)*begun"):
        run_script(source, timeout_s=1)
    assert time.monotonic() - started_s < stretched(20)


def test_orphans_are_found_and_killed(tmp_path):
    source = """
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    """
    with testing.start([sys.executable, str(testing.write_script(tmp_path, source))]) as script:
        result = script.wait(orphans_s=0.5)
        assert result.status == 0
        assert len(result.orphans) == 1 and "time.sleep(60)" in result.orphans[0]
        assert until_lost(script.marker, 5) == []


def test_scripts_of_a_fork_server(tmp_path):
    with testing.ForkServer() as server:
        source = "import os, sys; print(__name__, sys.argv[1:], os.getcwd(), torch is None if 'torch' in globals() else None); sys.exit(3)"
        result = server.run(source, 1, "two words", cwd=tmp_path / "new")
        assert (
            result.ok(3)
            and result.stdout == f"__main__ ['1', 'two words'] {tmp_path / 'new'} None\n"
        )
        assert "in <module>" in server.run("1 / 0").stderr
        assert server.run("import atexit; atexit.register(print, 'at exit')").stdout == "at exit\n"
        assert server.run("import time; time.sleep(60)", kill_after_s=0.1).status == -signal.SIGKILL
        with pytest.raises(TimeoutError, match=r"no end within 0.5 s(.|\n)*begun"):
            server.run("import time; print('begun', flush=True); time.sleep(60)", timeout_s=0.5)
    assert testing.fork_script("print([])").json() == []


def test_a_script_that_nobody_waits_for_ends_and_the_next_one_has_its_own_answer(tmp_path):
    """As at the time limit of a test, which is an error in the middle of ``fork_script``."""

    class TimeIsUp(Exception):
        pass

    def time_is_up(*_):
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, time_is_up)
    pid = tmp_path / "pid"
    source = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    try:
        signal.setitimer(signal.ITIMER_REAL, 3.0)
        with pytest.raises(TimeIsUp):
            testing.fork_script(source)
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert testing.fork_script("print('mine')").ok().stdout == "mine\n"


def test_a_signal_reaches_the_script(tmp_path):
    source = "import pathlib, time; pathlib.Path('ready').touch(); time.sleep(60)"
    with testing.start([sys.executable, "-c", source], cwd=tmp_path) as script:
        while not (tmp_path / "ready").exists():
            time.sleep(0.01)
        script.send(signal.SIGTERM)
        assert script.wait(10).status == -signal.SIGTERM


@pytest.mark.parametrize(
    "name",
    [
        "torch.save",
        "Module.train",
        "Tensor.backward",
        "DataLoader.__iter__",
        "ReduceLROnPlateau.step",
        "sys.stdout",
    ],
)
def test_a_replaced_attribute_is_named(name, monkeypatch):
    owner_name, attribute = name.split(".")
    before = torch_state()
    assert_torch_unchanged(before)
    monkeypatch.setattr({**testing.OWNERS, "sys": sys}[owner_name], attribute, lambda *_: None)
    with pytest.raises(AssertionError, match=f"{name}: .* is now "):
        assert_torch_unchanged(before)
    monkeypatch.undo()


def test_hooks_signals_threads_variables_and_an_active_session_are_named(monkeypatch):
    before = torch_state()
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    monkeypatch.setenv("MASTER_PORT", "1")
    torch.set_num_threads(torch.get_num_threads() + 1)
    try:
        with session(strategy=None), pytest.raises(AssertionError) as error:
            assert_torch_unchanged(before)
    finally:
        torch.set_num_threads(torch.get_num_threads() - 1)
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)
        signal.signal(signal.SIGTERM, handler)
        hook.remove()
        monkeypatch.undo()
    for name in (
        "module forward hooks",
        "SIGTERM",
        "signal wakeup descriptor",
        "MASTER_PORT",
        "threads of torch",
        "active session",
    ):
        assert f"\n{name}: " in str(error.value)
    assert_torch_unchanged(before)


def test_a_recording_server(tmp_path):
    answers = testing.write_script(
        tmp_path,
        "def answer(path, body, address):\n    return {'at': address, **body} if path == '/known' else None",
    )
    with testing.recording_server(answers, tmp_path / "server") as server:
        address = f"http://127.0.0.1:{server.port}"
        request = urllib.request.Request(
            f"{address}/known?a=1&a=2", b'{"b": 3}', {"Authorization": "me"}, method="PUT"
        )
        with urllib.request.urlopen(request) as response:
            assert json.loads(response.read()) == {"at": address, "b": 3}
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"{address}/other")
        refused.value.close()
        known = {
            "path": "/known",
            "query": {"a": ["1", "2"]},
            "authorization": "me",
            "body": {"b": 3},
        }
        assert server.requests() == [
            known,
            {"path": "/other", "query": {}, "authorization": None, "body": ""},
        ]


def test_listening_ports():
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert store.port in testing.listening_ports()


def test_recorder():
    recorder = Recorder("session_end", "session_start")
    with session(recorder, strategy=None):
        torch.ones(1, requires_grad=True).sum().backward()
    assert recorder.names == ["session_start", "session_end"]
