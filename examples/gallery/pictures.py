"""Small pictures for the scripts beside this file, by pillow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw

COLOURS: tuple[str, ...] = ("#4051b5", "#e4572e", "#29a19c", "#f2b134", "#8f5db7")
COLOURS += "#5a5a5a", "#2e7d32", "#c2185b", "#0288d1", "#795548"


def scatter(points: torch.Tensor, groups: Sequence[int], path: str, size: int = 400) -> None:
    """Points of the plane, in the colours of their groups."""
    low, high = points.min(0).values, points.max(0).values
    places = ((points - low) / (high - low) * 0.9 + 0.05) * size
    picture = Image.new("RGB", (size, size), "white")
    draw = ImageDraw.Draw(picture)
    for (x, y), group in zip(places.tolist(), groups, strict=True):
        draw.ellipse((x - 3, size - y - 3, x + 3, size - y + 3), fill=COLOURS[group])
    picture.save(path)


def curve(values: Sequence[float], path: str, width: int = 480, height: int = 240) -> None:
    """A line from left to right, between the smallest and the largest value."""
    low, high = min(values), max(values)
    steps = range(len(values))
    points = [
        (
            20 + (width - 40) * step / max(steps[-1], 1),
            height - 20 - (height - 40) * (value - low) / (high - low or 1),
        )
        for step, value in zip(steps, values, strict=True)
    ]
    picture = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(picture)
    draw.line(points, fill=COLOURS[0], width=2)
    draw.text((22, 2), f"{high:.3g}", fill="black")
    draw.text((22, height - 16), f"{low:.3g}", fill="black")
    picture.save(path)


def grid(images: torch.Tensor, path: str, columns: int, scale: int = 4) -> None:
    """Grey images (count, height, width) from 0 to 1, side by side."""
    count, height, width = images.shape
    size = (columns * (width + 1) * scale, -(-count // columns) * (height + 1) * scale)
    picture = Image.new("L", size, 255)
    for number, image in enumerate((images.clamp(0, 1) * 255).to(torch.uint8)):
        small = Image.frombytes("L", (width, height), bytes(image.flatten().tolist()))
        place = (number % columns * (width + 1), number // columns * (height + 1))
        large = small.resize((width * scale, height * scale), Image.Resampling.NEAREST)
        picture.paste(large, (place[0] * scale, place[1] * scale))
    picture.save(path)
