"""Small frames side by side, with captions, as PNG strips and GIF films (Pillow, no window)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Frame = NDArray[np.uint8]

PANEL_PX = 128  # height of a panel, a whole multiple of 64 px frames
GAP_PX = 8
CAPTION_PX = 18
_PAPER, _INK = (255, 255, 255), (40, 40, 40)


def side_by_side(frames: Sequence[Frame], captions: Sequence[str]) -> Image.Image:
    """Frames ``(H, W, 3)`` uint8 of one size in a row, each with its caption above.

    Small frames are enlarged by repeating pixels, never smoothed.
    """
    panel_width = round(PANEL_PX * frames[0].shape[1] / frames[0].shape[0])
    width = len(frames) * (panel_width + GAP_PX) + GAP_PX
    page = Image.new("RGB", (width, PANEL_PX + CAPTION_PX + GAP_PX), _PAPER)
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size=12)
    for column, (frame, caption) in enumerate(zip(frames, captions, strict=True)):
        left = GAP_PX + column * (panel_width + GAP_PX)
        panel = Image.fromarray(frame).resize((panel_width, PANEL_PX), Image.Resampling.NEAREST)
        page.paste(panel, (left, CAPTION_PX))
        draw.text((left, 2), caption, fill=_INK, font=font)
        draw.rectangle((left, CAPTION_PX, left + panel_width - 1, CAPTION_PX + PANEL_PX - 1), outline=_INK)
    return page


def grid(pages: Sequence[Image.Image], *, columns: int) -> Image.Image:
    """Pages of equal size, row by row."""
    width, height = pages[0].size
    rows = -(-len(pages) // columns)
    whole = Image.new("RGB", (width * min(columns, len(pages)), height * rows), _PAPER)
    for index, page in enumerate(pages):
        whole.paste(page, (index % columns * width, index // columns * height))
    return whole


def write_gif(path: Path, pages: Sequence[Image.Image], *, frames_per_second: float) -> Path:
    """An endless film, whole or not at all; the last page stays for a second longer."""
    durations = [round(1000 / frames_per_second)] * len(pages)
    durations[-1] += 1000
    temporary = path.with_name(f".{path.name}.partial")
    pages[0].save(
        temporary,
        format="GIF",
        save_all=True,
        append_images=pages[1:],
        duration=durations,
        loop=0,
        optimize=False,
    )
    os.replace(temporary, path)
    return path


def write_png(path: Path, page: Image.Image) -> Path:
    """A picture, whole or not at all."""
    temporary = path.with_name(f".{path.name}.partial")
    page.save(temporary, format="PNG")
    os.replace(temporary, path)
    return path
