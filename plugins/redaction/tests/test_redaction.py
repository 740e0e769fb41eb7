"""The redactor hides all secrets, and does not change other texts."""

from __future__ import annotations

import argparse
import base64
import dataclasses
import json
import os
import string
import sys
import types
import urllib.parse
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torchbus.errors import RankFailed, UsageError
from torchbus.runtime.user_code import warn

from torchbus_redaction import redactor
from torchbus_redaction.redactor import Redactor, printable, redacted, redacted_traceback
from torchbus_redaction.texts import HIDDEN

from .redaction_names import SECRET_NAMES

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
LETTERS = string.ascii_letters + string.digits
plain_secrets = st.text(LETTERS, min_size=10, max_size=40).map(lambda text: f"Zq7{text}")
wild_secrets = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=6, max_size=30
).map(lambda text: f"q8Z{text}")
names = st.sampled_from(SECRET_NAMES)


class Client:
    """Shows its key in ``repr``, as a script's class may do."""

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        setattr(self, name, value)

    def __repr__(self) -> str:
        return f"Client({self.name}={getattr(self, self.name)!r}, retries=3)"


class Mute(Client):
    def __repr__(self) -> str:
        return f"<{getattr(self, self.name)}>"


IN_VALUES: dict[str, Callable[[str, str], Any]] = {
    "dict": lambda name, value: {name: value},
    "deep": lambda name, value: {"a": [{"b": ({name: value},)}]},
    "namespace": lambda name, value: argparse.Namespace(**{name: value}),
    "simple namespace": lambda name, value: types.SimpleNamespace(**{name: value}),
    "dataclass": lambda name, value: dataclasses.make_dataclass(
        "C", [name.replace("-", "_").replace(".", "_")]
    )(value),
    "named tuple": lambda name, value: namedtuple("T", [name.replace("-", "_").replace(".", "_")])(
        value
    ),
    "repr": Client,
    "repr without a name": Mute,
    "repr in a dict": lambda name, value: {"x": str({"lr": 1, name: value})},
    "json in a text": lambda name, value: {"x": f"sent {json.dumps({name: value})}"},
    "list under a name": lambda name, value: {f"{name}_secrets": [value, {"x": value}]},
    "bytes": lambda name, value: {name: value.encode()},
    "elsewhere as well": lambda name, value: {
        "copy": f"it is {value}!",
        "list": [value],
        value: 1,
        "deep": {name: value},
    },
    "flag": lambda name, value: {"argv": ["train.py", f"--{name}={value}", "--lr", "1"]},
    "flag and value": lambda name, value: {"argv": ["train.py", f"--{name}", value, "--lr", "1"]},
    "override": lambda name, value: {"argv": ["train.py", f"cfg.{name}={value}"]},
}
IN_TEXTS: dict[str, Callable[[str, str], Any]] = {
    "assigned": lambda name, value: f"run with {name}={value}, lr=0.1",
    "flag": lambda name, value: f"train.py --{name} {value} --lr 1",
    "flag=": lambda name, value: f"train.py --{name}={value} --lr 1",
    "header": lambda name, value: f"{name}: {value}",
    "bearer": lambda name, value: f"Authorization: Bearer {value}",
    "address": lambda name, value: f"https://me:{value}@host/x",
    "address of a token": lambda name, value: f"https://{value}99999@host/x",
    "query": lambda name, value: f"https://host/x?a=1&{name}={value}&b=2",
    "signature": lambda name, value: f"https://host/x?sig={value}",
    "slack": lambda name, value: f"https://hooks.slack.com/services/T0/B0/{value}",
    "github": lambda name, value: f"pushed with ghp_{value * 2} to origin",
    "private key": lambda name, value: (
        f"-----BEGIN RSA PRIVATE KEY-----\n{value}\n{value}\n-----END RSA PRIVATE KEY-----"
    ),
}


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@UNHURRIED
@given(st.sampled_from(sorted(IN_VALUES)), names, wild_secrets)
def test_a_secret_among_values_is_in_nothing(place: str, name: str, secret: str) -> None:
    found = written(Redactor().plain({"lr": 0.1, "some": IN_VALUES[place](name, secret)}))
    assert secret not in found and written(secret)[1:-1] not in found and HIDDEN in found


@UNHURRIED
@given(st.sampled_from(sorted(IN_TEXTS)), names, plain_secrets)
def test_a_secret_in_a_text_is_in_nothing(place: str, name: str, secret: str) -> None:
    text = IN_TEXTS[place](name, secret)
    redactor = Redactor()
    assert secret not in redactor.text(text) and secret not in written(
        redactor.plain({"x": [text, {"y": text}]})
    )
    assert redactor.text(redactor.text(text)) == redactor.text(text)


@UNHURRIED
@given(
    names,
    wild_secrets,
    st.text(max_size=5),
    st.sampled_from([str, repr, json.dumps, lambda text: text.encode().hex()]),
)
def test_values_of_the_environment_are_found_anywhere(
    name: str, secret: str, around: str, spelled: Callable[[str], str]
) -> None:
    if "\0" in secret + around:
        return
    text = f"{around} {spelled(secret)} {around}"
    with mock.patch.dict(os.environ, {name: secret}):
        for found in (
            redacted(text),
            redacted_traceback(RuntimeError(text)),
            written(Redactor().plain({"x": text})),
            str(UsageError(text)),
            str(RankFailed(text)),
        ):
            assert secret not in found and repr(secret)[1:-1] not in found


def test_the_environment_of_later_counts_and_that_of_before_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EARLY_TOKEN", "early-value-1")
    redactor = Redactor()
    assert redactor.text("early-value-1 late-value-2") == f"{HIDDEN} late-value-2"
    monkeypatch.delenv("EARLY_TOKEN")
    monkeypatch.setenv("LATE_TOKEN", "late-value-2")
    assert redactor.text("early-value-1 late-value-2") == f"{HIDDEN} {HIDDEN}"


def test_another_thread_may_change_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changing(UserDict[str, str]):
        def __iter__(self) -> Iterator[str]:
            names = list(self.data)
            self.data.pop("GONE", None)  # after the names were read
            return iter(names)

    monkeypatch.setattr(os, "environ", Changing(GONE="1", THE_TOKEN="hidden-value-1"))
    assert redacted("hidden-value-1") == HIDDEN


def test_what_the_command_line_tells_is_hidden_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys,
        "orig_argv",
        ["python", "train.py", "--api-key=flag-1234", "--hub-token", "flag-5678", "--lr", "0.1"],
    )
    assert redacted("flag-1234 and flag-5678, lr 0.1") == f"{HIDDEN} and {HIDDEN}, lr 0.1"


def test_warnings_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "warn-secret-1")
    with pytest.warns(UserWarning) as record:
        warn("refused warn-secret-1 at https://me:other@host")
    assert str(record[0].message) == f"refused {HIDDEN} at https://me:{HIDDEN}@host"


@UNHURRIED
@example("a=" * 20_000)
@example('key="' * 5_000)
@example("secret=[" * 3_000)
@example("http://:" * 5_000)
@example("--key " * 5_000)
@given(st.text(max_size=200))
def test_any_text_is_taken(text: str) -> None:
    found = redacted(text)
    assert redacted(found) == found


def test_anything_becomes_json() -> None:
    endless: dict[str, Any] = {"x": 1}
    endless["all"] = [endless, endless]
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    told = Redactor().plain(
        {
            "a": endless,
            "b": deep,
            "c": Broken(),
            "d": float("nan"),
            "e": {1, 2},
            3: Client,
            "f": {"\ud800": "\ud800"},
        }
    )
    json.dumps(told)
    assert (
        told["c"] == "<Broken>"
        and told["d"] == "nan"
        and told["a"]["all"] == ["...", "..."]
        and "..." in written(told["b"])
    )


LAYOUTS = {
    "aligned": ("wandb_api_key        = VALUE", "wandb_api_key        = (hidden)"),
    "aligned yaml": ("password:       VALUE", "password:       (hidden)"),
    "yaml block": ("password: |\n    VALUE\nuser: me", "password: |\n    (hidden)\nuser: me"),
    "yaml list": ("tokens:\n  - VALUE\n  - a", "tokens:\n  - (hidden)\n  - a"),
    "xml": ("<a><password>VALUE</password></a>", "<a><password>(hidden)</password></a>"),
    "pair": ('["api_key", "VALUE"]', '["api_key", "(hidden)"]'),
    "items": (repr([*{"api_key": "VALUE"}.items()]), "[('api_key', '(hidden)')]"),
    "row": ('{"name": "api_key", "value": "VALUE"}', '{"name": "api_key", "value": "(hidden)"}'),
    "netrc": ("machine a.b login me password VALUE", "machine a.b login me password (hidden)"),
    "flag": ("--api-key       VALUE", "--api-key       (hidden)"),
    "flag on the next line": ("--api-key \\\n   VALUE", "--api-key \\\n   (hidden)"),
    "curl": ("curl -u me:VALUE http://x", "curl -u me:(hidden) http://x"),
    "sshpass": ("sshpass -p VALUE ssh h", "sshpass -p (hidden) ssh h"),
    "docker": ("docker login -u me -p VALUE r", "docker login -u me -p (hidden) r"),
    "sql": ("CREATE USER u IDENTIFIED BY 'VALUE'", "CREATE USER u IDENTIFIED BY '(hidden)'"),
    "toml": ('api_key = """\nVALUE\n"""\nlr = 1', 'api_key = "(hidden)"\nlr = 1'),
    "toml literal": ("api_key = '''VALUE'''", "api_key = '(hidden)'"),
    "ini": ("password = VALUE and more\nlr = 1", "password = (hidden)\nlr = 1"),
    "two words": ("password\tVALUE\nlr  1", "password\t(hidden)\nlr  1"),
    "csh": ("setenv API_KEY VALUE", "setenv API_KEY (hidden)"),
    "manifest": (
        "- name: WANDB_API_KEY\n  value: VALUE\n- name: A\n  value: b",
        "- name: WANDB_API_KEY\n  value: (hidden)\n- name: A\n  value: b",
    ),
    "secret": (
        "kind: Secret\ndata:\n  config: VALUE\n  b: VALUE\ntype: Opaque",
        "kind: Secret\ndata:\n  config: (hidden)\n  b: (hidden)\ntype: Opaque",
    ),
    "secret as JSON": (
        '{"kind": "Secret", "data": {"config": "VALUE"}}',
        '{"kind": "Secret", "data": (hidden)}',
    ),
    "anchor": ("password: &it VALUE", "password: &it (hidden)"),
    "tagged block": ("password: !vault |\n  1\n  VALUE\n", "password: !vault |\n  (hidden)\n"),
    "folded": ('password: "VALUE\\\n  VALUE"', 'password: "(hidden)"'),
    "crlf": ("password:\r\n  VALUE", "password:\\r\n  (hidden)"),
    "attributes": (
        '<input name="password" value="VALUE">',
        '<input name="password" value="(hidden)">',
    ),
    "cdata": ("<password><![CDATA[VALUE]]></password>", "<password>(hidden)</password>"),
    "plist": (
        "<key>password</key><string>VALUE</string>",
        "<key>password</key><string>(hidden)</string>",
    ),
    "table": ("| password | VALUE |", "| password | (hidden) |"),
    "two columns": ("password | VALUE\nlr | 1", "password | (hidden)\nlr | 1"),
    "dots": ("  api_key ......... VALUE\n  lr .... 1", "  api_key ......... (hidden)\n  lr .... 1"),
    "arrow": ("password -> VALUE", "password -> (hidden)"),
    "interpolated": ("password: ${oc.env:DB_PASSWORD,VALUE}", "password: (hidden)"),
    "quoted": ("the password 'VALUE' is wrong", "the password '(hidden)' is wrong"),
    "yaml map": (
        "credentials:\n  user: me\n  deep:\n    at: VALUE\nlr: 1",
        "credentials:\n  user: (hidden)\n  deep:\n    at: (hidden)\nlr: 1",
    ),
    "content": (
        '<meta name="csrf-token" content="VALUE">',
        '<meta name="csrf-token" content="(hidden)">',
    ),
    "field": (
        "Field(name='password', default='VALUE')",
        "Field(name='password', default='(hidden)')",
    ),
    "two of requests": ("get(u, auth=('me', 'VALUE'))", "get(u, auth=('me', '(hidden)'))"),
    "box": ("│ password │ VALUE │", "│ password │ (hidden) │"),
    "argv": ("['t.py', '--api-key', 'VALUE']", "['t.py', '--api-key', '(hidden)']"),
    "default": (
        "p.add_argument('--api-key', default='VALUE')",
        "p.add_argument('--api-key', default='(hidden)')",
    ),
    "setattr": ("setattr(c, 'api_key', 'VALUE')", "setattr(c, 'api_key', '(hidden)')"),
    "annotation": ("api_key: str = 'VALUE'", "api_key: str = '(hidden)'"),
    "prefix": ("api_key = rF'VALUE'", "api_key = rF'(hidden)'"),
    "bytearray": ("{'password': bytearray(b'VALUE')}", "{'password': (hidden)}"),
    "said": ("the password is VALUE, and", "the password is (hidden), and"),
    "colours": ("\x1b[36mpassword\x1b[0m=\x1b[35mVALUE\x1b[0m", "password=(hidden)"),
    "bold": ("**password**: VALUE", "**password**: (hidden)"),
    "no-break space": ("password\xa0=\xa0VALUE", "password\xa0=\xa0(hidden)"),
    "full width": ("password\uff1aVALUE", "password\uff1a(hidden)"),
    "pgp": (
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVALUE\n-----END PGP PRIVATE KEY BLOCK-----",
        "(hidden)",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_that_everybody_uses(layout: str) -> None:
    text, expected = LAYOUTS[layout]
    assert redacted(text.replace("VALUE", "s3cr3t-0001")) == expected
    assert redacted(f"before\n{text}\nafter".replace("VALUE", "s3cr3t-0001")).endswith("after")


@pytest.mark.parametrize(
    "encode",
    [
        lambda value: base64.b64encode(value.encode()).decode(),
        lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
        lambda value: base64.b64encode(f"me:{value}".encode()).decode(),
        urllib.parse.quote,
        urllib.parse.quote_plus,
    ],
)
def test_a_known_value_is_hidden_in_its_encodings(
    encode: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "k3y with/space+0123456789?>"
    monkeypatch.setenv("WANDB_API_KEY", value)
    shown = redacted(f"it is {encode(value)}.")
    assert HIDDEN in shown and encode(value)[6:-6] not in shown


def test_pairs_and_rows_are_hidden_in_values() -> None:
    found = Redactor().plain(
        {"a": [*{"password": "s3cr3t"}.items()], "b": [{"name": "password", "value": "s3cr3t"}]}
    )
    hidden = {"name": "password", "value": HIDDEN}
    assert found == {"a": [["password", HIDDEN]], "b": [hidden]}


@pytest.mark.parametrize(
    "sentence",
    [
        "/home/me/key is not secret: the file and its folder must be this user's",
        "rank 1 has a different key from rank 0: the ranks of a job recognise each other by it",
        "the job's key: either it is another job, or rank 1 was started twice",
        "max tokens: 512, num_tokens = 4096",
    ],
)
def test_sentences_stay(sentence: str) -> None:
    assert redacted(sentence) == sentence


def test_what_controls_a_terminal_is_escaped() -> None:
    text = "a\x1b[2J\rb\u202ec\ud800\n\tä 中 \U0001f600"
    shown = "a\\x1b[2J\\rb\\u202ec\\ud800\n\tä 中 \U0001f600"
    assert redacted(text) == printable(text) == shown


def test_a_traceback_shows_code_and_no_literal() -> None:
    def connect(password: str) -> None:
        raise RuntimeError(f"refused: password={password}")

    def tried(password: str) -> str:
        try:
            connect(password=password)
        except RuntimeError as error:
            return redacted_traceback(error)
        return ""

    shown = tried("s3cr3t-" + "0002")
    assert "connect(password=password)" in shown and "s3cr3t" not in shown
    assert "refused: password=(hidden)" in shown
    try:
        connect(password="s3cr3t-0003")
    except RuntimeError as error:
        assert "s3cr3t" not in redacted_traceback(error)


def test_many_secrets_are_learned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may have thousands of secrets. Making a pattern takes as long as for all of them."""
    made: list[int] = []
    once = redactor.pattern
    monkeypatch.setattr(redactor, "pattern", lambda known: made.append(1) or once(known))
    values = {f"password{number}": f"Zq7{number:06d}x" for number in range(100)}
    content = {**values, "url": "https://u:Hk39sdk2@h/", "note": "Zq7000042x, Hk39sdk2"}
    hidden = dict.fromkeys(values, "(hidden)")
    found = Redactor().plain(content)
    assert found == {**hidden, "url": "https://u:(hidden)@h/", "note": "(hidden), (hidden)"}
    assert len(made) == 1


def test_the_token_of_a_telegram_bot_is_hidden_anywhere() -> None:
    token = "123456789:AA" + "Hk39sdkJw_2-" * 2 + "abcdefghi"
    assert redacted(f"started {token} with 3 ranks") == "started (hidden) with 3 ranks"
    assert redacted("12345678:AAB with 3 ranks") == "12345678:AAB with 3 ranks"
