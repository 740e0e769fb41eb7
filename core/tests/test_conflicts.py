"""Two packages that offer one name, two plugins that do one thing: neither is taken silently."""

from __future__ import annotations

import sys

import pytest
from torchbus import session
from torchbus.bus import discovery
from torchbus.bus.base import hookimpl
from torchbus.errors import PluginConflict, UsageError

PLUGIN = """
    from torchbus.bus.base import hookimpl

    class Plugin:
        verbs = ("answer",)

        def __init__(self, *, by=1, depth=2):
            self.answer = by

        @hookimpl
        def after_backward(self):
            pass
"""
BOTH = r"is offered by first-package 1\.2 \(first_package:Plugin\) and second-package 1\.2 \(second_package:Plugin\): uninstall one of them, or pass"


@pytest.fixture
def two(install):
    """Installs two packages that offer the same."""

    def install_two(**kinds):
        for name in ("second-package", "first-package"):
            install(name, PLUGIN, **kinds)

    return install_two


@pytest.mark.parametrize(
    ("kinds", "arguments", "options", "words"),
    [
        ({"plugin": {"p": "Plugin"}}, ("p",), {}, "plugin 'p'"),
        ({"strategy": {"p": "Plugin"}}, (), {"strategy": "p"}, "strategy 'p'"),
        ({"logger": {"p": "Plugin"}}, (), {"logger": "p"}, "logger 'p'"),
        ({"logger": {"p": "Plugin"}}, (), {"logger": ["p"]}, "logger 'p'"),
        ({"option": {"by": "Plugin"}}, (), {"by": 3}, "option 'by'"),
    ],
)
def test_a_name_that_two_packages_offer(two, kinds, arguments, options, words):
    two(**kinds)
    with pytest.raises(PluginConflict, match=f"^{words} {BOTH} the plugin itself as an object$"):
        session(*arguments, **{"strategy": None} | options)
    with session(strategy=None):  # nobody asked for it
        pass
    from second_package import Plugin  # type: ignore[import-not-found]

    with session(Plugin(by=7), strategy=None) as s:
        assert s.answer == 7


def test_a_name_of_ours_that_another_package_offers_too(install):
    pytest.importorskip("torchbus_sharded")
    install(
        "stranger",
        PLUGIN,
        option={"mode": "Plugin"},
        strategy={"ddp": "Plugin"},
        plugin={"sampler": "Plugin"},
    )
    with pytest.raises(
        PluginConflict,
        match=r"^option 'mode' is offered by stranger 1\.2 \(stranger:Plugin\) and torchbus-checkpoint ",
    ):
        session(checkpoint="here", monitor="loss", mode="max")
    with pytest.raises(
        PluginConflict,
        match=r"^strategy 'ddp' is offered by stranger 1\.2 \(stranger:Plugin\) and torchbus-ddp ",
    ):
        session(strategy="ddp")
    with pytest.raises(PluginConflict, match=r"^strategy 'ddp' is offered by "):
        session(devices=2, accelerator="cpu")
    with pytest.raises(
        PluginConflict,
        match=r"^plugin 'sampler' is offered by stranger 1\.2 .* and torchbus-sampler ",
    ):
        session(strategy="fsdp")
    with session(strategy=None, gradient_clip_val=1.0):
        pass


def test_an_option_whose_plugin_has_the_name_of_another(install):
    """Both are wanted, by options that only one of them has."""
    install("first-package", PLUGIN, plugin={"p": "Plugin"}, option={"by": "Plugin"})
    install("second-package", PLUGIN, plugin={"p": "Plugin"}, option={"depth": "Plugin"})
    with session(strategy=None, depth=3) as s:
        assert (
            type(
                next(plugin for name, plugin in s._context.bus.plugins() if name == "p")
            ).__module__
            == "second_package"
        )
    with pytest.raises(PluginConflict, match=f"^plugin 'p' {BOTH} the plugin itself as an object$"):
        session(strategy=None, by=1, depth=3)


def test_a_verb_that_two_packages_offer(two):
    two(plugin={"p": "Plugin"}, verb={"answer": "Plugin"})
    with session(strategy=None) as s:
        with pytest.raises(PluginConflict, match=rf"^s\.answer {BOTH}") as error:
            _ = s.answer
        assert isinstance(error.value, AttributeError) and not hasattr(s, "answer")
        assert s._context.bus.plugins() == []
    from first_package import Plugin  # type: ignore[import-not-found]

    with session(Plugin(by=5), strategy=None) as s:  # the one that is active
        assert s.answer == 5


def test_companions_of_one_module_all_come_along(install, monkeypatch):
    """They were not asked for by name, and neither stands for the other."""
    source = """
        class Companion:
            pass
    """
    for name in ("second-package", "first-package"):
        install(
            name,
            source,
            companion={"some_tracker": "Companion"},
            plugin={f"of_{name}": "Companion"},
        )
    with session(strategy=None) as s:
        assert s._context.bus.plugins() == []
    monkeypatch.setitem(sys.modules, "some_tracker", sys)
    with session(strategy=None) as s:
        assert [name for name, _ in s._context.bus.plugins()] == [
            "of_first-package",
            "of_second-package",
        ]


def test_a_package_that_is_there_twice_is_one(install):
    """An editable install beside another one, or a folder twice on the path."""
    install("some-package", PLUGIN, option={"by": "Plugin"})
    sys.path.append(sys.path[0] + "/")
    try:
        discovery.offers.cache_clear()
        with session(strategy=None, by=3):
            pass
    finally:
        sys.path.pop()


def test_two_engines():
    class First:
        @hookimpl
        def run_backward(self, call, engine):
            raise AssertionError

    class Second(First):
        pass

    with pytest.raises(PluginConflict) as error:
        session(First(), Second(), strategy=None)
    assert (
        str(error.value)
        == "First and Second both listen to run_backward, which only one plugin may do: pass only one of them"
    )
    with session(First(), strategy=None) as s:
        with pytest.raises(PluginConflict, match="^First and Second both listen to run_backward"):
            s.add_plugin(Second())
        assert [name for name, _ in s._context.bus.plugins()] == ["First"]


def test_an_engine_beside_that_of_a_strategy():
    class Own:
        @hookimpl
        def run_backward(self, call, engine):
            raise AssertionError

    with pytest.raises(
        PluginConflict, match=r"^Own and ddp\.gradients both listen to run_backward"
    ):
        session(Own(), strategy="ddp", devices=2, accelerator="cpu", launch="fork").start()


def test_two_active_plugins_with_one_verb():
    class First:
        verbs = ("answer", "first")

    class Second:
        verbs = ("second", "answer")

    with pytest.raises(
        PluginConflict, match=r"^First and Second both add s\.answer: pass only one of them$"
    ):
        session(First(), Second(), strategy=None)


def test_a_verb_that_the_session_has_itself():
    class Plugin:
        verbs = ("rank",)
        rank = 3

    with pytest.raises(
        UsageError,
        match=r"^plugin Plugin adds s\.rank, which the session has already: give it another name$",
    ):
        session(Plugin(), strategy=None)


def test_options_of_two_strategies_by_name(install):
    """Each brings its plugin: the message names the option, since nobody has asked for the other
    strategy.
    """
    source = """
        class Own:
            owns = ("strategy",)

            def __init__(self, *, width=1):
                pass
    """
    install(
        "own-strategy",
        source,
        strategy={"own": "Own"},
        option={"width": "Own"},
        plugin={"own": "Own"},
    )
    with pytest.raises(
        UsageError,
        match="^width: an option of strategy='own', and the strategy here is 'ddp': leave it out, or pass strategy='own'$",
    ):
        session(strategy="ddp", width=2)
    with session(strategy="own", width=2):
        pass
