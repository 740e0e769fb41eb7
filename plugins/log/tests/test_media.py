"""``s.log_image`` and ``s.log_histogram``: what loggers get, what stands in the folder, messages."""

from __future__ import annotations

import json
import math
import struct
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchbus import session
from torchbus.errors import UsageError

from torchbus_log.trackers.values import Image, Values
from torchbus_testing.forking import fork_script
from torchbus_testing.recorder import RecordingLogger


def decoded(png: bytes) -> Tensor:
    """The pixels of a PNG file without filters, read by its specification."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        (check,) = struct.unpack(">I", png[at + 8 + length : at + 12 + length])
        assert check == zlib.crc32(kind + data)
        chunks[kind], at = data, at + 12 + length
    width, height, depth, colour, *_ = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert depth == 8 and list(chunks)[-1] == b"IEND"
    channels = {0: 1, 2: 3, 6: 4}[colour]
    rows = torch.frombuffer(bytearray(zlib.decompress(chunks[b"IDAT"])), dtype=torch.uint8)
    rows = rows.view(height, 1 + width * channels)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, channels)


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3, 4]), st.booleans())
def test_a_picture_is_the_same_after_writing(height, width, channels, as_array):
    pixels = torch.randint(0, 256, (height, width, channels), dtype=torch.uint8)
    given = pixels.numpy() if as_array else pixels.permute(2, 0, 1)
    assert torch.equal(decoded(Image("x", given).png()), pixels)


def test_floats_are_from_zero_to_one():
    values = torch.tensor([[-1.0, 0.0, 0.5], [1.0, 7.0, math.nan]])
    pixels = Image("x", values.bfloat16()).pixels().squeeze(-1)
    assert pixels.tolist() == [[0, 0, 128], [255, 255, 0]]
    assert Image("x", torch.tensor([[True, False]])).pixels().flatten().tolist() == [255, 0]


def test_a_picture_of_pil_and_an_array_of_numpy():
    numpy = pytest.importorskip("numpy")
    pillow = pytest.importorskip("PIL.Image")
    array = numpy.arange(24, dtype=numpy.uint8).reshape(2, 4, 3)
    assert Image("x", pillow.fromarray(array)).pixels().tolist() == array.tolist()


def test_a_picture_stays_as_it_was_when_it_was_logged(tmp_path):
    with session(strategy=None, logger="local", log_dir=tmp_path) as s:
        buffer = torch.zeros(2, 2)
        s.log_image("x", buffer)
        buffer.fill_(1.0)
    (file,) = tmp_path.glob("*/media/*.png")
    assert not decoded(file.read_bytes()).any()


finite = st.floats(-1e6, 1e6, width=32)


@given(st.lists(finite | st.sampled_from([math.nan, math.inf, -math.inf])), st.integers(1, 64))
def test_every_finite_value_is_counted_once(values, bins):
    found = Values("x", torch.tensor(values, dtype=torch.float64), bins).counted()
    known = [value for value in values if math.isfinite(value)]
    assert len(found.counts) == bins and len(found.edges) == bins + 1
    assert sum(found.counts) == len(known) and found.not_finite == len(values) - len(known)
    assert found.edges == sorted(found.edges)
    if known:
        assert found.edges[0] <= min(known) and max(known) <= found.edges[-1]
        assert found.sum == pytest.approx(sum(known), rel=1e-9, abs=1e-3)


def test_loggers_hear_name_and_step():
    hears = RecordingLogger()
    with session(strategy=None, logger=hears) as s:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        s.log_histogram("w", model.weight, bins=4)
        s.log_image("x", torch.zeros(2, 2), step=70)
    ((step, name, values),) = hears.histograms
    assert (step, name, sum(values.counted().counts)) == (2, "w", 4.0)
    assert [(step, name) for step, name, _ in hears.pictures] == [(70, "x")]


RANKS = """
import sys, torch
from torchbus import session

with session(strategy="ddp", devices=2, launch="fork", logger="local", log_dir=sys.argv[1]) as s:
    s.log_histogram("values", torch.full((3,), float(s.rank)), bins=2)
    if s.rank == 0:
        s.log_image("picture", torch.ones(2, 3))
"""


def test_rank_0_writes_its_own(tmp_path: Path):
    """And may log without the others."""
    pytest.importorskip("torchbus_ddp")
    assert fork_script(RANKS, tmp_path, timeout_s=60).ok()
    (folder,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in (folder / "media.jsonl").read_text().splitlines()]
    histogram, picture = lines
    assert (histogram["counts"], histogram["range"]) == ([0.0, 3.0], [-0.5, 0.5])
    assert (picture["image"], picture["step"]) == ("picture", 0)
    assert decoded((folder / picture["file"]).read_bytes()).shape == (2, 3, 1)
    assert len(list((folder / "media").iterdir())) == 1


REFUSED = [
    (
        lambda s: s.log_image("x", torch.zeros(4, 3, 8, 8)),
        "s.log_image('x'): its shape is (4, 3, 8, 8), but it must be one picture: a tensor (height,"
        " width) or (channels, height, width), with 1, 3 or 4 channels. Of a batch, pass one, or a"
        " grid such as torchvision.utils.make_grid(images)",
    ),
    (
        lambda s: s.log_image("x", torch.zeros(2, 8, 8).numpy()),
        "it must be one picture: an array (height, width) or (height, width, channels), with 1, 3",
    ),
    (
        lambda s: s.log_image("x", torch.zeros(8, 8, dtype=torch.int64)),
        "s.log_image('x'): its values are torch.int64: pass floats in [0, 1], or uint8",
    ),
    (
        lambda s: s.log_image("x", "picture.png"),
        "s.log_image('x'): a str is not a picture: pass a tensor, a NumPy array or an image of PIL. Of"
        " a figure, pass numpy.asarray(figure.canvas.buffer_rgba())",
    ),
    (lambda s: s.log_image(3, torch.zeros(2, 2)), "s.log_image(3, ...): the name must be a string"),
    (
        lambda s: s.log_histogram("x", "values"),
        "s.log_histogram('x'): a str is neither a tensor nor an array of real numbers",
    ),
    (
        lambda s: s.log_histogram("x", torch.zeros(2, dtype=torch.complex64)),
        "s.log_histogram('x'): torch.complex64 is neither a tensor nor an array of real numbers",
    ),
    (
        lambda s: s.log_histogram("x", torch.zeros(2), bins=1000),
        "s.log_histogram('x', bins=1000): it must be a whole number from 1 to 512",
    ),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_is_no_picture_and_no_histogram_is_refused(call, words):
    with session(strategy=None) as s, pytest.raises(UsageError) as caught:
        call(s)
    assert words in str(caught.value)


def test_verbs_are_refused_outside():
    with session(strategy=None) as s:
        s.log("x", 1.0)
    with pytest.raises(UsageError, match="s.log_image was called outside its session"):
        s.log_image("x", torch.zeros(2, 2))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_every_picture_has_three_channels_for_those_who_want_them(channels: int) -> None:
    value = torch.rand(channels, 2, 3)
    image = Image("x", value)
    rgb = image.rgb()
    assert rgb.shape == (2, 3, 3) and rgb.is_contiguous()
    assert torch.equal(rgb, image.pixels()[..., [0] * 3 if channels == 1 else [0, 1, 2]])
