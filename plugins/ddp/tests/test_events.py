"""The plugin's own events: another way to make the process group, and to configure DDP."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.errors import UsageError

from torchbus_ddp import events
from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result

SCRIPTS = Path(__file__).parent / "scripts"

SCRIPT = SCRIPTS / "listeners.py"


@pytest.fixture(scope="module")
def result() -> Result:
    result = fork_script(SCRIPT)
    assert result.ok()
    return result


def test_the_group_is_made_by_the_listener(result):
    assert "group gloo 2 99.0\n" in result.stdout


def test_ddp_is_configured_by_the_listener(result):
    # and init_sync where torch has it
    assert "ddp True ['broadcast_buffers', 'bucket_cap_mb'" in result.stdout
    assert "hooked True\n" in result.stdout


def test_gradients_are_averaged_all_the_same(result):
    assert "gradient [[0.5, 0.5, 0.5]]\ngradient [[1.5, 1.5, 1.5]]\n" in result.stdout


def test_the_group_is_closed_with_the_session(result):
    assert result.stdout.endswith("initialized False\n")


@pytest.mark.parametrize("name", ["configure_ddp"])
def test_they_are_documented(name):
    assert len(inspect.getdoc(getattr(events, name))) > 100


def test_a_plugin_may_listen_to_them_whatever_the_strategy():
    """Nobody sends them without ddp; a misspelled one is an error all the same."""

    class Mine:
        @hookimpl
        def configure_ddp(self, module):
            return None

    class Misspelled:
        @hookimpl
        def configure_dpp(self, module):
            return None

    session(Mine(), strategy="ddp", devices=1, accelerator="cpu")
    session(Mine(), strategy=None)
    words = "plugin Misspelled listens to 'configure_dpp', which is not an event; did you mean configure_ddp"
    with pytest.raises(UsageError, match=words):
        session(Misspelled(), strategy=None)
