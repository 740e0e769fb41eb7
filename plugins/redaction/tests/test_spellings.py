"""Known values in any spelling, unknown ones near their names, and sentences that stay."""

from __future__ import annotations

import base64
import html
import json
import shlex
import textwrap
from collections.abc import Callable

import pytest

from torchbus_redaction.redactor import redacted, redacted_output
from torchbus_redaction.texts import HIDDEN

KNOWN = "Zk93mQx7/w2p+Vt5R&aBcD 04\"x'y"
PLAIN = "Zk93mQx7Lw2pVt5RaBcD"
SHORT_WORDS = 'x7#Kq!9p&Lm/2"x'
"""A sentence could have the same letters and digits."""
SPELLINGS: dict[str, Callable[[str], str]] = {
    "JSON in JSON in JSON": lambda value: json.dumps(json.dumps(json.dumps({"a": value}))),
    "repr of a repr": lambda value: repr(repr(value)),
    "percent, twice": lambda value: "".join(f"%25{ord(one):02x}" for one in value),
    "hex": lambda value: value.encode().hex(),
    "HEX with colons": lambda value: value.encode().hex(":").upper(),
    "base32": lambda value: base64.b32encode(value.encode()).decode(),
    "base85": lambda value: base64.b85encode(value.encode()).decode(),
    "base64 in lines": lambda value: base64.encodebytes(f"{'x' * 50}{value}".encode()).decode(),
    "base64, twice": lambda value: base64.b64encode(base64.b64encode(value.encode())).decode(),
    "entities": lambda value: "".join(f"&#{ord(one)};" for one in value),
    "HTML": html.escape,
    "shell": shlex.quote,
    "backslashes": lambda value: "".join(one if one.isalnum() else f"\\{one}" for one in value),
    "csv": lambda value: value.replace('"', '""'),
    "wrapped": lambda value: "\n    ".join(textwrap.wrap(value, 9)),
    "in a box": lambda value: f"│ {value[:9]} │\n│ {value[9:]} │",
    "parts of code": lambda value: f"{value[:9]!r}\n    {value[9:]!r}",
    "colours": lambda value: f"{value[:5]}\x1b[31m{value[5:]}\x1b[0m",
    "characters": lambda value: repr([*value]),
    "UTF-16": lambda value: repr(value.encode("utf-16le")),
    "\\u": lambda value: "".join(f"\\u{ord(one):04x}" for one in value),
    "\\x": lambda value: "".join(f"\\x{ord(one):02x}" for one in value),
    "\\U": lambda value: "".join(f"\\U{ord(one):08x}" for one in value),
    "\\u{}": lambda value: "".join(f"\\u{{{ord(one):x}}}" for one in value),
    "zero width": "\u200b".join,
    "numbers": lambda value: str([*value.encode()]),
    "0x": lambda value: " ".join(f"0x{one:02x}" for one in value.encode()),
    "upper case": str.upper,
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_known_value_is_hidden_in_any_spelling(
    spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (KNOWN, PLAIN, SHORT_WORDS) if spelling != "UTF-16" else (KNOWN, PLAIN):
        monkeypatch.setenv("SERVICE_API_KEY", value)
        written = SPELLINGS[spelling](value)
        shown = redacted(f"before {written} after")
        assert HIDDEN in shown and written[4:-4] not in shown, shown
        assert shown.startswith("before ") and shown.endswith(" after")


def test_a_known_value_of_words_is_not_found_across_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "model-v2-2024")
    assert redacted("model v2 2024") == "model v2 2024"
    assert redacted("it is model-v2-2024") == f"it is {HIDDEN}"
    monkeypatch.setenv("SERVICE_API_KEY", "epoch2024")
    assert redacted("epoch 2024, epoch\t2024") == "epoch 2024, epoch\t2024"
    assert redacted("it is EPOCH\\\n2024") == f"it is {HIDDEN}"


@pytest.mark.parametrize(
    "spelled",
    [
        ascii,
        lambda value: repr(value.encode()),
        lambda value: value.encode("ascii", "xmlcharrefreplace").decode(),
        lambda value: '"\\u043F\\u0430\\u0440-\\xDC"',  # as YAML writes it
    ],
)
def test_a_known_value_of_other_letters(
    spelled: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "пар-Ü")
    shown = redacted(f"before {spelled('пар-Ü')} after")
    assert HIDDEN in shown and len(shown) <= len(f"before b'{HIDDEN}' after")


def test_a_short_known_value_is_hidden_in_base64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "hunter2")
    assert "dW50ZXIy" not in redacted(f"x {base64.b64encode(b'me:hunter2').decode()}")
    escaped = 'a\\b"c 12345'
    monkeypatch.setenv("SERVICE_API_KEY", escaped)
    inside = base64.b64encode(json.dumps({"x": escaped}).encode()).decode()
    assert inside[16:24] not in redacted(inside)


NEAR = """
(b'x-api-key', b'VALUE')
api_key -> VALUE
Attribute(name='api_key', default='VALUE')
{"type": "password", "data": "VALUE"}
{"Key": "api_key", "Value": "VALUE"}
{"ParameterKey": "DbPassword", "ParameterValue": "VALUE"}
tokens: [VALUE, b]
[password]@value = VALUE
variable "db_password" {@  default = "VALUE"
{&quot;password&quot;: &quot;VALUE&quot;}
https://h/o?X-Goog-Signature=VALUE
Authorization: ApiKey VALUE
Authorization: AWS4-HMAC-SHA256 Credential=A/2020, Signature=VALUE
redis-cli -h h -a VALUE ping
rclone config create x s3 secret_access_key VALUE
name,api_key@me,VALUE
Incorrect API key provided: VALUE. You can find
error: argument --api-key: invalid value: 'VALUE'
invalid api_key, got 'VALUE'
password set to VALUE
if password != 'VALUE':
#define API_KEY "VALUE"
let api_key: &str = "VALUE";
API_KEY ?= VALUE
ENV API_KEY VALUE
SET PASSWORD FOR me = 'VALUE'
api_keys=frozenset({'VALUE'})
api_key=Key(value='VALUE', n=1)
password=array(['VALUE'], dtype='<U9')
├── api_key@│   └── VALUE
auth=('me', 'VALUE')
HTTPBasicAuth('me', 'VALUE')
mot_de_passe=VALUE
PMAK-VALUEVALUE-VALUE
"""


@pytest.mark.parametrize("layout", NEAR.split("\n")[1:-1])
def test_an_unknown_value_is_hidden_near_its_name(layout: str) -> None:
    assert PLAIN not in redacted(layout.replace("@", "\n").replace("VALUE", PLAIN))


STAYS = """
loss=0.25 acc=0.91 tokens=512 max_tokens=4096 sort_key=name monkey=banana
commit 7a4f0b9e1c2d3f4a5b6c7d8e9f0a1b2c3d4e5f60 on main
token_embedding.weight has shape [50257, 768]
unexpected key: encoder.layer.11.output.dense.bias
missing key(s) in state_dict: "conv1.weight", "bn1.running_mean"
KeyError: 'momentum_buffer_0'
cache key a1b2c3d4e5f60718 not found
no token was given: use --token or HF_TOKEN
set TORCHBUS_KEY to the same secret on all hosts
password_policy: strict, credential_helper=store
authorization: the server refuses it after 3 tries
/home/me/secrets/2026-11-27-a1b2c3d4e5f6/checkpoint.pt
wandb run https://wandb.ai/me/proj/runs/3fa9c2d1, then `wandb login`
password changed at 20261127T183000Z
sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
if key != other and token == pad: pass
key=lambda item: item[1]
jax.random.PRNGKey 42 and key_padding_mask=None
rank 1 has the credentials. Then resnet50x4clip336 is trained
the secret is read. Run a1b2c3d4e5f6a7b8 begins
"""


@pytest.mark.parametrize("sentence", STAYS.split("\n")[1:-1])
def test_what_is_not_secret_stays(sentence: str) -> None:
    assert redacted(sentence) == sentence == redacted_output(sentence)
