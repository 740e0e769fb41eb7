"""Texts that are not hidden: other names, short values, prose, paths and source lines."""

from __future__ import annotations

from typing import Any

import pytest

from torchbus_launch import failure
from torchbus_redaction.redactor import Redactor, redacted
from torchbus_redaction.texts import HIDDEN

from .redaction_names import SECRET_NAMES

OTHER_NAMES = """keyboard monkey author authority tokens tokens_per_batch max_tokens keep path pattern patience passes compass pad_token
    eos_token_id num_key_value_heads key_padding_mask sort_key image_key keys tokenizer key_file token_path auth_method bypass turkey""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", OTHER_NAMES)
@pytest.mark.parametrize("value", ["resnet50-v2", 4096, ["a", "b"], {"x": 1}])
def test_other_names_hide_nothing(name: str, value: Any) -> None:
    assert Redactor().plain({name: value, "copy": value}) == {name: value, "copy": value}
    assert (
        redacted(f"C({name}='resnet50-v2') --{name} resnet50-v2")
        == f"C({name}='resnet50-v2') --{name} resnet50-v2"
    )


@pytest.mark.parametrize("name", SECRET_NAMES)
@pytest.mark.parametrize("value", [None, True, False, ""])
def test_what_says_nothing_is_shown(name: str, value: Any) -> None:
    assert Redactor().plain({name: value}) == {name: value}


@pytest.mark.parametrize(
    "value", ["1", "true", "True", "none", "auto", "42", "abc", "cuda", "default", "123"]
)
def test_short_and_common_values_are_not_hidden_everywhere(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("MY_SECRET_KEY", value)
    text = f"{value} of {value}: lr={value}"
    assert redacted(text) == text
    assert Redactor().plain({"password": value, "flag": value}) == {
        "password": HIDDEN,
        "flag": value,
    }


def test_a_word_is_not_hidden_inside_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter")
    monkeypatch.setenv("PIN_SECRET", "123456")
    assert (
        redacted("hunter and hunters, 123456 of 91234567")
        == f"{HIDDEN} and hunters, {HIDDEN} of 91234567"
    )


@pytest.mark.parametrize(
    "text",
    [
        "the batch's key: a word",
        "http://localhost:8080/@scope git@github.com:a/b.git ssh://git@host/x",
        "basic understanding of bearer bonds",
        "loss_weight='tokens': the graph of this loss",
        "NeptuneLogger(api_token=...)",
        "{'auth': ('u', 'v')}",
        "cuda:0, step 3: lr=0.1",
        "token: 5, key: 3",
        "x['key']: 3 on rank 0",
    ],
)
def test_prose_stays(text: str) -> None:
    assert redacted(text) == text


def test_paths_of_what_there_is_are_no_secrets(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PWD", str(tmp_path))
    (tmp_path / "key.pem").write_text("")
    told = {"pwd": str(tmp_path), "ssl_key": f"{tmp_path}/key.pem", "log_dir": f"{tmp_path}/logs"}
    assert Redactor().plain(told) == told


def test_source_lines_of_a_traceback_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "trace-secret-1")
    try:
        login = {}["token"]  # noqa: F841
    except KeyError as error:
        error.args = ("trace-secret-1",)
        found = failure.of(1, error)
    assert (
        'login = {}["token"]' in found.traceback
        and "trace-secret-1" not in found.traceback + found.summary
    )
