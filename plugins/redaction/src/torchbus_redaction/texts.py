"""Finds secrets in texts: passwords, tokens, and values assigned to names of secrets."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from numbers import Integral, Real

PREFIX = "[bruBRUfF]{0,2}"
QUOTED = (
    rf"""{PREFIX}\"{{3}}[\s\S]*?\"{{3}}|{PREFIX}'{{3}}[\s\S]*?'{{3}}|{PREFIX}"(?:[^"\\]|\\[\s\S])*\""""
    rf"""|{PREFIX}'(?:[^'\\]|\\[\s\S])*'|\\+["'][^"'\\]*\\+["']"""
)
INTERPOLATED = r"\$\{[^{}\n]{1,300}\}"
WORD = r"[A-Za-z_][\w.-]{0,100}"
NAME = r"(?<![\w.-])(?P<name>-{0,2}[^\W\d][\w.-]*)"
SPACE = (
    r"[ \t\xa0]{0,80}(?:\r?\n(?![ \t]*(?:['\"]{3}|[\w.-]{1,60}:\s))[ \t]{0,20})?"
    r"(?:[&!][\w!./-]{1,60}[ \t]{1,8}){0,2}"  # an anchor or a tag of YAML
)
ANNOTATED = r":[ \t]{1,8}&?[A-Za-z_][\w.\[\], |]{0,60}=(?=[ \t]{0,8}[\"'bruBRUfF])"
TEXTS_BETWEEN = (
    r"""(?P<between>\\*(?:["'`]|\*\*)?\]?[ \t\xa0]{0,80}"""
    rf"(?:[=-]>|[:?]=|[=!]={{1,2}}|\.{{4,200}}(?=[ \t])|{ANNOTATED}|[=:\uff1a\uff1d])"
    rf"(?:\*\*)?{SPACE})"
)
ASSIGNED = re.compile(NAME + TEXTS_BETWEEN)
CALL = re.compile(rf"[\w.]{{1,60}}(?=\()(?!\((?:{QUOTED})\))")
VALUE = re.compile(rf"""{QUOTED}|{INTERPOLATED}|[\w.]{{1,60}}\((?:{QUOTED})\)|[^\s,;&"'<>]+""")
NAMED = re.compile(r"([+~-]*[^\W\d][\w.@/-]*)=(.*)", re.DOTALL)
QUOTES_AROUND = re.compile(r"""([bruBRUfF]{0,2}\\*["'])(.*?)(\\*["'])""", re.DOTALL)
QUOTES = ("'", '"', "\\")
FLAG = re.compile(
    rf"(?<![\w-])(?P<name>--?[A-Za-z][\w.-]*)(?P<between>(?:\s|\\\n){{1,40}})(?P<value>{QUOTED}|[^\s\\\-\"'][^\s\"']*)"
)
XML = re.compile(
    r"(?P<before><(?P<name>[A-Za-z_][\w:.-]{0,100})(?:\s[^<>]{0,200})?>)"
    r"(?P<value><!\[CDATA\[[^<>]*\]\]>|[^<>]+)(?=</)"
)
XML_PAIR = re.compile(
    rf"(?P<before><(?P<tag>\w{{1,40}})>(?P<name>{WORD})</(?P=tag)>"
    r"\s{0,40}<\w{1,40}>)(?P<value>[^<>]+)(?=</)"
)
PAIR = re.compile(
    rf"""(?P<before>(?:[\[(]|\bsetattr\([^(),]{{1,80}},)\s{{0,4}}b?(?P<quote>["'])(?P<name>{WORD})(?P=quote)\s{{0,4}},\s{{0,4}})(?P<value>{QUOTED})"""
)
FLAG_PAIR = re.compile(
    rf"""(?P<before>(?P<quote>["'])(?P<name>--?{WORD})(?P=quote)\s{{0,4}},\s{{0,20}}(?:[^()\n]{{0,120}}?\bdefault\s?=\s?)?)(?P<value>{QUOTED})"""
)
ROW = re.compile(
    rf"""(?P<before>(?i:\b\w{{0,20}}(?:name|key|field|type))["']?\s{{0,4}}[:=]\s{{0,4}}["']?(?P<name>{WORD})["']?\s{{0,4}}(?:,|\s)\s{{0,40}}["']?(?i:\w{{0,20}}(?:value|val|data|default|content))["']?\s{{0,4}}[:=]\s{{0,4}})(?P<value>{QUOTED}|[^\s,;<>"'}}]+)"""
)
"""A field with a name, and one with its value: in JSON, Python, YAML and attributes of XML."""
TABLE = re.compile(
    rf"(?P<before>(?:^|[|│┃])[ \t]{{0,40}}[`*]{{0,2}}(?P<name>{WORD})[`*]{{0,2}}"
    r"[ \t]{0,80}[|│┃][ \t]{0,40})(?P<value>[^\s|│┃]+)(?=[ \t]{0,80}(?:[|│┃]|$))",
    re.MULTILINE,
)
BARS = re.compile("[|│┃]")
LAYOUTS = (XML, XML_PAIR, PAIR, FLAG_PAIR, ROW)
LINE = re.compile(
    rf"(?P<before>^[ \t]{{0,40}}(?:export[ \t]+)?(?P<name>{WORD})"
    r"[ \t]{0,80}=[ \t]{0,80})(?P<value>[^\s=\"'\[({#][^=\n\"']*)$",
    re.MULTILINE,
)
NAME_AND_VALUE = re.compile(
    rf"(?P<before>^[ \t]{{0,40}}(?:(?:setenv|set[ \t]-g?x)[ \t]{{1,20}})?"
    rf"(?P<name>{WORD})[ \t]{{1,80}})(?P<value>\S+)(?=[ \t]*$)",
    re.MULTILINE,
)
SAID = re.compile(
    rf"(?P<before>\b(?P<name>{WORD}) (?:(?:is|was) |(?=[\"'])))"
    rf"(?P<value>{QUOTED}|\S+?(?=[.,;]?(?:\s|$)))"
)
COLOURS = re.compile(r"\x1b\[[\d;]{0,20}m")
OF_KUBERNETES = re.compile(r"""\bkind["']?\s{0,4}:\s{0,4}["']?Secret\b""")
DATA = re.compile(
    r"(?P<before>^(?P<indent>[ \t]{0,40})(?:data|stringData):[ \t]*\n)"
    r"(?P<value>(?:(?P=indent)[ \t]+\S.*(?:\n|$))+)"
    r"""|(?P<json>["'](?:data|stringData)["']\s{0,4}:\s{0,4})\{[^{}]*\}""",
    re.MULTILINE,
)
YAML_MAP = re.compile(
    rf"(?P<before>^(?P<indent>[ \t]{{0,40}})(?P<name>{WORD}):[ \t]*\n)"
    r"(?P<value>(?:(?P=indent)[ \t]+\S.*(?:\n|$))+)",
    re.MULTILINE,
)
MAPPED = re.compile(r"(?P<before>:[ \t]+)(?P<value>\S.*)")
BEGINS_BLOCK = re.compile(
    r"(?P<between>:[ \t]{0,80}(?:![\w!./:-]{1,60}[ \t]{1,8})?[|>][+-]?\d?[ \t]{0,80}\n)"
)
YAML_BLOCK = re.compile(NAME + BEGINS_BLOCK.pattern + r"(?P<value>(?:[ \t]+\S.*(?:\n|$))+)")
BEGINS_LIST = re.compile(r"(?P<between>:[ \t]{0,80}\n)(?P<value>(?:[ \t]*-[ \t]+\S.*(?:\n|$))+)")
YAML_LIST = re.compile(NAME + BEGINS_LIST.pattern)
ITEM = re.compile(r"(?P<before>-[ \t]+)(?P<value>\S.*)")
CREDENTIALS = re.compile(
    r"(?P<before>\b(?:machine[ \t]+\S+|default)\s+(?:(?:login|account)\s+\S+\s+){0,2}password\s+"
    r"|\bcurl\b[^\n]{0,300}?\s(?:-u\s*|--user[=\s]\s*)[\"']?[^\s:\"']+:"
    r"|\b(?:redis-cli\b[^\n]{0,200}?\s-a|ldap\w+\b[^\n]{0,200}?\s-w|zip\b[^\n]{0,200}?\s-P"
    r"|7z\w?\b[^\n]{0,200}?\s-p|openssl\b[^\n]{0,200}?\s-[kK]|wandb\s+login(?=\s+\w{20}))\s*[\"']?"
    r"|\b(?:sshpass\s+-p\s*|docker\s+login\b[^\n]{0,200}?\s-p\s+|mysql\w*\b[^\n]{0,200}?\s-p)[\"']?"
    r"|\b(?:PASSWORD|(?i:IDENTIFIED\s+BY))\s+[\"'])[^\s\"']+"
)
AUTH_PAIR = re.compile(
    r"(?P<before>[Aa]uth[\"']?\s?[=:]?\s?\(\s?[\"'][^()\n\"']{1,60}[\"'],\s?[\"'])[^\s\"']{4,}"
)
HEADER = re.compile(
    r"(?P<before>\b(?:(?:proxy-)?authorization|(?:set-)?cookie):[ \t]+"
    r"(?:[A-Za-z][\w-]{2,20}[ \t]+)?)"
    r"(?P<value>[^\s\"'(`][^\n\"'`]{7,}(?:\"[^\n]*)?)",
    re.IGNORECASE,
)
ADDRESS = re.compile(
    r"""(?P<before>\b[a-zA-Z][\w+.-]{0,30}://)(?P<user>[^\s/:@"'<>?#]{0,300})(?P<password>:(?!\d{1,5}[/?#"',])\S{0,300})?(?=@)"""
)
BEARER = re.compile(
    r"(?P<before>\b(?:bearer|basic|token)[ \t]+)(?P<value>[\w.~+/-]{8,}=*)", re.IGNORECASE
)
GIVEN_AWAY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)"
    r"|https?://(?:hooks\.slack\.com|(?:ptb\.|canary\.)?discord(?:app)?\.com/api/webhooks|[\w.-]+\.webhook\.office\.com)/[^\s\"'<>]+"
    r"|\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,}|xox[abeprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[\w-]{30,}|eyJ[\w-]{10,500}\.[\w-]{10,}\.[\w-]*|eyJhcGlf[\w+/-]{20,}=*|[sr]k_(?:live|test)_\w{10,}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|npm_\w{30,}|pypi-AgE[\w-]{20,}|dapi[0-9a-f]{32}|dckr_pat_[\w-]{20,}"
    r"|AGE-SECRET-KEY-1\w{20,}|local-[0-9a-f]{40}|wandb_v1_\w{20,}|gsk_\w{20,}|nvapi-[\w-]{20,}"
    r"|GOCSPX-[\w-]{20,}|ya29\.[\w-]{20,}"
    r"|(?:xapp-|whsec_|dop_v1_|shp(?:at|ca|pa|ss)_|gl(?:rt|ptt|dt)-|lin_api_|figd_|pplx-|r8_|xai-|tgp_v1_|hvs\.|dp\.(?:st|pt)\."
    r"|sq0\w{3}-|PMAK-|ATATT3|gl(?:sa|c)_|tskey-\w+-|ntn_|lsv2_(?:pt|sk)_|pcsk_|rpa_)[\w.=-]{20,}|NRAK-[A-Z0-9]{20,}"
    r"|key-[0-9a-f]{32}|[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,})|(?<=/bot)\d{6,12}:[\w-]{30,}|\b\d{8,10}:AA[\w-]{33}",
    re.DOTALL,
)
SIGNED = re.compile(
    r"(?P<before>[?&](?:X-\w{3,4}-Signature|X-Amz-Security-Token|sig|signature|code)=)[^\s&#\"'<>]+",
    re.IGNORECASE,
)
RANDOM = re.compile(r"(?<![\w/.@-])[A-Za-z0-9][\w+/=-]{9,500}(?![\w/@])")
CHANGES = re.compile(r"(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[a-z0-9]|(?<=[0-9])[A-Za-z]")
NEARBY = re.compile(r"(?<![\w/.])[A-Za-z_][\w.-]{0,60}(?![\w/])")
AFTER_NAME = re.compile(r"""(?P<name>[A-Za-z_][\w-]{0,60})[^\w\n]{0,6}[=:|~<>{\[(%][^\w\n]{0,6}$""")
AFTER_END = re.compile(r"[^\w\n]{0,20}(?:\w{1,20}[^\w\n]{1,8})?")
NEAR = 60
OPENING, CLOSING = ("(", "[", "{"), (")", "]", "}")
DOTTED = re.compile(r"[A-Za-z_]\w{0,30}(?:\.\w{1,30}){2,}")
"""The dotted name of a model's parameter."""
LONG_USER, LONGEST_BRACKET = 16, 10_000


def without_assigned(text: str) -> str:
    """Hide values whose names mean secrets, also inside other values: ``C(d={'key': 'x'})``."""
    text = COLOURS.sub("", text)
    for layout in LAYOUTS:
        text = layout.sub(_laid_out, text)
    text = TABLE.sub(_laid_out, text) if BARS.search(text) else text
    if OF_KUBERNETES.search(text):
        text = DATA.sub(_of_kubernetes, text)
    text = SAID.sub(_said, NAME_AND_VALUE.sub(_said, LINE.sub(_line, text)))
    text = YAML_BLOCK.sub(_block, text) if BEGINS_BLOCK.search(text) else text
    text = YAML_LIST.sub(_listed, text) if BEGINS_LIST.search(text) else text
    text = YAML_MAP.sub(_mapped, text) if ":" in text else text
    return RANDOM.sub(_nearby, FLAG.sub(_flagged, _without(text, _assigned(text))))


def without_literals(code: str) -> str:
    """Hide quoted texts after names of secrets in code; ``login(key=key)`` is not changed."""
    literals = (
        (found, value)
        for found, value in _assigned(code)
        if value != _bare(value) and any(map(str.isalnum, value))
    )
    return _without(code, literals)


def _without(text: str, secrets: Iterable[tuple[re.Match[str], str]]) -> str:
    """Hide the secret after each match."""
    reported, done = [], 0
    for found, value in secrets:
        reported += [text[done : found.end()], _in_quotes(value)]
        done = found.end() + len(value)
    return "".join([*reported, text[done:]])


def without_given_away(text: str) -> str:
    """Hide passwords in addresses, signatures, and values in the form of a known token."""
    text = (
        ADDRESS.sub(_address, GIVEN_AWAY.sub(HIDDEN, text))
        if "://" in text or GIVEN_AWAY.search(text)
        else text
    )
    if any(word in text.lower() for word in BEFORE_CREDENTIALS):
        text = CREDENTIALS.sub(rf"\g<before>{HIDDEN}", text)
    text = AUTH_PAIR.sub(rf"\g<before>{HIDDEN}", text)
    text = HEADER.sub(_header, text) if ":" in text else text
    return BEARER.sub(_bearer, SIGNED.sub(rf"\g<before>{HIDDEN}", text))


def assigned(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of secrets in a text."""
    yield from ((found["name"], _bare(value)) for found, value in _assigned(text))
    for found in FLAG.finditer(text):
        if is_hidden(found["name"], _bare(found["value"]), True):
            yield found["name"], _bare(found["value"])


def named(word: str, before: str) -> tuple[str, str]:
    """Return the name and value of a word of a command line; ("", word) if it has no name.

    The word is ``name=value``, or it follows a flag.
    """
    if (
        before.startswith("-")
        and "=" not in before
        and not word.startswith("--")
        and speaks(before) is not Speaks.NOT
    ):
        return before, word
    found = NAMED.fullmatch(word)
    return (found[1], found[2]) if found else ("", word)


def passwords(text: str) -> Iterator[str]:
    """Yield the passwords of addresses in a text."""
    for found in ADDRESS.finditer(text) if "://" in text else ():
        if found["password"]:
            yield found["password"][1:]


def _assigned(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield the matches of names that mean secrets, and the secret after each."""
    done = 0
    for found in ASSIGNED.finditer(text):
        if found.start() < done or speaks(found["name"]) is Speaks.NOT:
            continue
        value = _after(found, text)
        prose = (
            re.search(":|->", found["between"]) is not None
            and value == _bare(value)
            and not found["between"].startswith(QUOTES)
        )
        compares = found["between"].strip()[:2] in ("==", "!=")
        sure = speaks(found["name"]) is Speaks.SURELY and value != _bare(value)
        if (compares and not sure) or (prose and value.lower() in SENTENCE):
            continue
        if is_hidden(found["name"], _bare(value), prose):
            yield found, value
            done = found.end() + len(value)


def _after(found: re.Match[str], text: str) -> str:
    if text.startswith(OPENING, found.end()):
        return _bracket(found["name"], text[found.end() : found.end() + LONGEST_BRACKET])
    if call := CALL.match(text, found.end()):
        inside = _bracket(found["name"], text[call.end() : call.end() + LONGEST_BRACKET])
        return call[0] + inside if inside else ""
    value = VALUE.match(text, found.end())
    return _split(value[0]) if value is not None else ""


def _bracket(name: str, text: str) -> str:
    """Return a list or dict up to its end if its name surely means secrets, otherwise "".

    Under any other name, the names inside the list or dict decide.
    """
    depth = 0
    for place, letter in enumerate(text if speaks(name) is Speaks.SURELY else ""):
        depth += (letter in OPENING) - (letter in CLOSING)
        if depth == 0:
            return text[: place + 1]
    return text if depth else ""


def _laid_out(found: re.Match[str]) -> str:
    value = found["value"]
    is_secret = is_hidden(found["name"].rpartition(":")[2], _bare(value).strip(), True)
    return found["before"] + _in_quotes(value) if is_secret else found[0]


def _line(found: re.Match[str]) -> str:
    """Hide the whole value of a line ``password = several words``."""
    is_secret = speaks(found["name"]) is Speaks.SURELY and hides(found["name"], found["value"])
    return found["before"] + HIDDEN if is_secret else found[0]


def _said(found: re.Match[str]) -> str:
    """Hide a value that looks secret in ``password  value`` and ``the password is value``."""
    name, value = found["name"], _bare(found["value"])
    looks_so = len(value) >= 8 and any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    is_secret = speaks(name) is Speaks.SURELY and looks_so and hides(name, value)
    return found["before"] + _in_quotes(found["value"]) if is_secret else found[0]


def _of_kubernetes(found: re.Match[str]) -> str:
    if found["json"]:
        return found["json"] + HIDDEN
    return found["before"] + MAPPED.sub(rf"\g<before>{HIDDEN}", found["value"])


def _mapped(found: re.Match[str]) -> str:
    """Hide all values below a name that surely means secrets."""
    name = found["name"]

    def item(one: re.Match[str]) -> str:
        is_secret = is_hidden(name, _bare(one["value"]), False)
        return one["before"] + _in_quotes(one["value"]) if is_secret else one[0]

    is_map = speaks(name) is Speaks.SURELY
    return found["before"] + MAPPED.sub(item, found["value"]) if is_map else found[0]


def _block(found: re.Match[str]) -> str:
    if not is_hidden(found["name"], found["value"].strip(), True):
        return found[0]
    indent = found["value"][: len(found["value"]) - len(found["value"].lstrip())]
    end = "\n" if found["value"].endswith("\n") else ""
    return f"{found['name']}{found['between']}{indent}{HIDDEN}{end}"


def _listed(found: re.Match[str]) -> str:
    name = found["name"].removesuffix("s")

    def item(one: re.Match[str]) -> str:
        is_secret = is_hidden(name, _bare(one["value"].strip()), True)
        return one["before"] + _in_quotes(one["value"]) if is_secret else one[0]

    return f"{found['name']}{found['between']}{ITEM.sub(item, found['value'])}"


def _flagged(found: re.Match[str]) -> str:
    value = _bare(found["value"])
    is_secret = value not in SENTENCE and is_hidden(found["name"], value, False)
    return f"{found['name']}{found['between']}{HIDDEN}" if is_secret else found[0]


def _nearby(found: re.Match[str]) -> str:
    """Hide a word that looks random, a few words after a name that surely means a secret."""
    before = found.string[max(0, found.start() - NEAR) : found.start()]
    return HIDDEN if _is_random(found[0]) and _names_one(before) else found[0]


def _is_random(value: str) -> bool:
    """Return whether the kinds of characters change often in a long word."""
    if "/" in value and not (len(value) >= 32 and re.search("[a-z].*[A-Z]|[A-Z].*[a-z]", value)):
        return False
    return any(
        len(part) >= 10 and len(CHANGES.findall(part)) >= 4 for part in re.split(r"[\W_]", value)
    )


def _names_one(before: str) -> bool:
    """Return whether a name of a secret precedes a value in its line.

    If the value is near the beginning of its line, the end of the line above counts, too.
    """
    above, _, line = before.rpartition("\n")
    line = re.split(rf"[.;!?] |{re.escape(HIDDEN)}", line)[-1]
    direct = AFTER_NAME.search(line)
    if direct and speaks(direct["name"].removesuffix("s")) is not Speaks.NOT:
        return True
    words = NEARBY.findall(line)
    if AFTER_END.fullmatch(line):
        words = [*NEARBY.findall(above.rpartition("\n")[2])[-1:], *words]
    names = [*words, *map("_".join, itertools.pairwise(words))]
    return any(speaks(name) is Speaks.SURELY for name in names)


def is_hidden(name: str, value: str, prose: bool) -> bool:
    """Return whether to hide a value of this name.

    ``prose`` is True for a text like "the key: a word", in which an ordinary word is not hidden.
    """
    if value in EMPTY_VALUES or value.startswith(HIDDEN):
        return False
    is_word = len(value) < LONG_USER and not (len(value) >= 6 and any(map(str.isdigit, value)))
    if prose and speaks(name) is Speaks.PERHAPS and (is_word or DOTTED.fullmatch(value)):
        return False
    return hides(name, _number(value))


def _number(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(text) if len(text) < 100 else text
        except ValueError:
            continue
    return text


def _split(value: str) -> str:
    """Cut an unquoted value at the bracket that closes around it, as in ``Obj(key=x)``."""
    depth = 0
    for place, letter in enumerate(value if value == _bare(value) else ""):
        depth += (letter in OPENING) - (letter in CLOSING)
        if depth < 0:
            return value[:place]
    return value


def _bare(value: str) -> str:
    """Remove the quotes around a value."""
    found = QUOTES_AROUND.fullmatch(value)
    return found[2] if found else value


def _in_quotes(value: str) -> str:
    found = QUOTES_AROUND.fullmatch(value)
    return f"{found[1]}{HIDDEN}{found[3]}" if found else HIDDEN


def _address(found: re.Match[str]) -> str:
    """Hide the password of an address, or a token in place of the user; keep the user."""
    if found["password"]:
        return f"{found['before']}{found['user']}:{HIDDEN}"
    return f"{found['before']}{HIDDEN}" if len(found["user"]) >= LONG_USER else found[0]


def _header(found: re.Match[str]) -> str:
    looks_so = re.search(r"(?=[\w+/.-]*\d)(?=[\w+/.-]*[A-Za-z])[\w+/.-]{8}", found["value"])
    return found["before"] + HIDDEN if looks_so else found[0]


def _bearer(found: re.Match[str]) -> str:
    value = found["value"]
    looks_so = any(map(str.isdigit, value)) or value.endswith("=") or len(value) >= 20
    return f"{found['before']}{HIDDEN}" if looks_so else found[0]


HIDDEN = "(hidden)"
BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # wandbKey, APIKey
PHRASES_BETWEEN = re.compile(r"[\W_]+|(?<=[^\W\d_])\d+(?=[\W_]|$)")
STEMS = re.compile(
    "passw|passphrase|passcode|kennwort|contrase|mot_?de_?passe|secret|credential|webhook|(?:api|access|auth|private)_?(?:key|token)s?"
)


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


BEFORE_CREDENTIALS = _word_set(
    "pass curl docker mysql identified redis-cli ldap zip 7z openssl wandb"
)
EMPTY_VALUES = _word_set("| |- |+ lambda None True False null true false ...") | {""}
ALWAYS = _word_set("pwd psk creds bearer authorization jwt cookie cookies otp sas")
OFTEN = _word_set("key token auth oauth pat pass pw")
"""Words with several meanings. They hide a text or a long number, unless another word of the name
is in ``PLAIN``.
"""
MANY = _word_set("keys tokens")
"""Words that hide a value only if another word of the name is in ``HOLDERS``."""
HOLDERS = (
    "api access auth private secret ssh gpg wandb hf huggingface hub neptune comet mlflow clearml"
    " aws azure gcp google github gh gitlab openai anthropic slack discord telegram bot kaggle"
    " modal s3 minio db client login user account storage service license refresh session sign"
    " signing signature encryption deploy subscription bearer oauth jwt personal admin root"
    " registry pypi npm docker require"
)
HOLDING = _word_set(HOLDERS)
GLUED = re.compile(rf"(?:{HOLDERS.replace(' ', '|')})(?:key|token|pass|pwd)s?")
PLAIN = _word_set(
    "pad eos bos unk sep cls mask padding embedding embed query qkv value values head heads dropout"
    " prefix special stop start end begin separator sort order index primary foreign group column"
    " image label text target metric monitor input output batch dict state map cache word next"
    " forward backward single first second kernel"
)
COUNTS = _word_set(
    "num n nb max min per count counts size dim dims len length limit rate ratio steps id ids"
    " seconds timeout bits rounds"
)
PLACES = _word_set(
    "file files filename path paths dir folder sock socket mode method type types provider name"
    " field env parallelism prompt helper policy"
)
SENTENCE = _word_set(
    "the a an it its this that these there they must may can is are was were no not none and or but"
    " if of to in on at for from by with without use set give pass choose see each every all any"
    " only one either neither both what which who whoever you your run call make let invalid"
    " expected missing required got unknown"
)
"""Words that continue a sentence after a colon, as in "the file is not secret: it must be"."""
PROBLEMS = _word_set("error exception warning")
"""Names of errors, as in ``KeyError: 'momentum'``."""


class Speaks(Enum):
    """How certain it is that a name means a secret."""

    NOT = 0
    PERHAPS = 1
    SURELY = 2


def is_place(value: str) -> bool:
    """Return whether a value is an existing path: ``PWD``, ``ssl_key="/etc/ssl/key.pem"``."""
    return value.startswith(("/", "./", "../", "~")) and os.path.exists(os.path.expanduser(value))


@functools.lru_cache(4096)
def speaks(name: str) -> Speaks:
    """Return how certain it is that a value of this name is a secret."""
    parts = [word for word in PHRASES_BETWEEN.split(BOUNDARY.sub("_", name[-200:]).lower()) if word]
    if not parts or parts[-1] in PLACES | PROBLEMS:
        return Speaks.NOT
    if any(
        word in ALWAYS or STEMS.search(word) or GLUED.fullmatch(word) for word in parts
    ) or STEMS.search("_".join(parts)):
        return Speaks.SURELY
    there = set(parts)
    if there & HOLDING and there & (OFTEN | MANY) - HOLDING:
        return Speaks.SURELY
    return Speaks.PERHAPS if there & OFTEN and not there & PLAIN else Speaks.NOT


def hides(name: str, value: object) -> bool:
    """Return whether to hide a whole value of this name.

    A number is not hidden if the name means a count (``max_key_length``).
    """
    sure = speaks(name)
    if sure is Speaks.NOT or value is None or isinstance(value, bool) or value == "":
        return False
    if isinstance(value, str) and is_place(value):
        return False
    if isinstance(value, Real):
        long = isinstance(value, Integral) and abs(int(value)) >= 10**6
        return (sure is Speaks.SURELY or long) and not COUNTS & set(
            PHRASES_BETWEEN.split(BOUNDARY.sub("_", name).lower())
        )
    return sure is Speaks.SURELY or not isinstance(value, dict | list | tuple | set | frozenset)
