"""The page, and the verdict as JSON."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

from torchbus_verify import report
from torchbus_verify.causes.cause import Cause
from torchbus_verify.compare.difference import Difference
from torchbus_verify.page import page
from torchbus_verify.report import Verdict

PLACES = (
    Difference("gradient", "model.<weight>", 0, 0, 0.0, 1e-14),
    Difference("gradient", "model.<weight>", 0, 1, 0.25, 2e-14),
    Difference("parameter", "model.bias", 0, 1, 1e-16, 2e-14),
    Difference("order", "", 0, 2, math.inf, 0.0, "4 steps, not 5"),
)
CAUSE = Cause("batch normalisation", "found <so>", "remedy", True)
VERDICT = Verdict(
    1, "different", 2, 1, "float64", math.inf, 0.0, PLACES[1], (CAUSE,), ("a note",), places=PLACES
)


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_refers_to_nothing():
    text = page(VERDICT)
    tags = Tags()
    tags.feed(text)
    assert not tags.open and not re.search(r"(src|href)=|url\(", text)
    assert "model.&lt;weight&gt;" in text and "<weight>" not in text and "found &lt;so&gt;" in text


def test_what_is_more_than_rounding_comes_first_and_is_marked():
    figures = re.findall(r'<figure class="chart( more)?"><figcaption><b>(.*?)</b>', page(VERDICT))
    assert figures == [(" more", "order"), (" more", "model.&lt;weight&gt;"), ("", "model.bias")]


def test_a_verdict_comes_back_from_json_as_it_was():
    assert (
        report.loads(report.dumps(VERDICT)) == VERDICT
        and not VERDICT.same
        and VERDICT.cause == CAUSE.name
    )
