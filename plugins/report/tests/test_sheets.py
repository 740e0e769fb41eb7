"""Tables and curves that plugins have logged, on the page."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
import torch
from torch.utils.data import DataLoader
from torchbus import session

import torchbus_report

TABLE = {"step": 3, "table": "t <b>", "columns": ["a", "b&"], "rows": [["x<y", 2.5]], "plot": None}
CURVE = {
    "step": 4,
    "table": "curve",
    "columns": ["x", "y"],
    "rows": [[1e-5 * 10**n, n] for n in range(5)],
    "plot": ["x", "y"],
}


def page(folder, *records):
    (folder / "config.json").write_text('{"name": "run"}')
    lines = [one if isinstance(one, str) else json.dumps(one) for one in records]
    (folder / "media.jsonl").write_text("\n".join(lines) + "\n")
    return torchbus_report.page([torchbus_report.runs.reading.read(folder)])


def test_a_table_is_shown_as_text(tmp_path):
    shown = page(tmp_path, TABLE)
    assert "<b>t &lt;b&gt;</b>" in shown and "<th>b&amp;</th>" in shown
    assert "<td>x&lt;y</td><td>2.5</td>" in shown


def test_a_curve_over_decades_has_a_logarithmic_axis(tmp_path):
    shown = page(tmp_path, CURVE)
    path = re.search(r'aria-label="curve: y by x">.*?<path class="c0[^"]*"  d="([^"]*)"', shown)
    places = [int(x) for x in re.findall(r"[ML](\d+) ", path[1])]
    steps = [b - a for a, b in pairwise(places)]
    assert max(steps) - min(steps) <= 1  # equal factors, equal distances


def test_the_last_of_a_name_is_shown(tmp_path):
    shown = page(tmp_path, TABLE, {**TABLE, "step": 9, "rows": [["later", 1]]})
    assert "later" in shown and "x&lt;y" not in shown


@pytest.mark.parametrize(
    "changes",
    [
        {"columns": []},
        {"columns": [3]},
        {"columns": ["a"] * 40},
        {"rows": [["one"]]},
        {"rows": [[["nested"], 1]]},
        {"rows": [[None, 1]]},
        {"rows": [[1e301, 1]]},
        {"rows": "no"},
        {"table": 3},
        {"step": None},
    ],
)
def test_a_damaged_table_is_left_out(tmp_path, changes):
    shown = page(tmp_path, {**TABLE, **changes}, CURVE)
    assert "x&lt;y" not in shown and "curve: y by x" in shown


@pytest.mark.parametrize(
    "changes",
    [
        {"plot": ["x", "z"]},
        {"plot": "xy"},
        {"rows": [["text", 1], ["more", 2]]},
        {"rows": [[1, 2]]},
    ],
)
def test_a_curve_that_cannot_be_drawn_is_a_table(tmp_path, changes):
    shown = page(tmp_path, {**CURVE, **changes})
    assert "curve: y by x" not in shown and "<b>curve</b>" in shown


def test_the_curve_of_find_lr(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with session(strategy=None, logger="local", log_dir=tmp_path) as s:
        s.find_lr(step, optimizer, DataLoader(torch.randn(64, 4), batch_size=4), steps=20)
    (folder,) = tmp_path.iterdir()
    shown = torchbus_report.page([torchbus_report.runs.reading.read(folder)])
    assert 'aria-label="find_lr: loss, smoothed by learning rate"' in shown


def test_a_loss_that_is_no_number_hides_no_curve(tmp_path):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    rates = []

    def step(x):
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
        return loss.detach() if rates[-1] < 0.1 else torch.tensor(float("nan"))

    with session(strategy=None, logger="local", log_dir=tmp_path) as s:
        s.find_lr(step, optimizer, DataLoader(torch.randn(8, 4)), min_lr=1e-4, max_lr=1.0, steps=20)
    (folder,) = tmp_path.iterdir()
    (sheet,) = torchbus_report.runs.reading.read(folder).media.sheets
    assert len(sheet.rows) == len(rates) - 1 and sheet.plot == (0, 1)
