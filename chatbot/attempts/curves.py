"""The learning curves of attempts: reads the records of metrics.jsonl, and draws them as a picture."""

import logging
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from chatbot.durable import replacing

Record = dict[str, Any]

LOSS = "loss"
VALIDATION = "validation.nats_per_character"
# The colours of Okabe and Ito (2008), which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# The number of points of the bold curve of the training loss, the mean of neighbours; pale lines show each record.
POINTS = 100
# Inches and dots per inch: upright, which fills the screen of a phone and half a printed page.
WIDTH = 6.0
HEIGHT = 6.5
DPI = 150
# Families with Chinese characters on Linux, macOS and Windows.
CHINESE_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei"),
    *("PingFang SC", "Hiragino Sans GB", "Heiti SC", "Microsoft YaHei", "SimHei", "SimSun"),
)


class Curve(NamedTuple):
    """The values of a metric and their steps, without missing ones."""

    steps: npt.NDArray[np.float64]  # [points]
    values: npt.NDArray[np.float64]  # [points]


def read_records(path: Path) -> list[Record]:
    """Return the records of a metrics.jsonl in the order of their steps, an empty list if there is no such file.

    Lines that are no record are left out, such as one that is still being written. A run that was killed repeats the
    steps since its checkpoint: the later record of a step counts.
    """
    if not path.exists():
        return []
    records: list[Record] = []
    for line in path.read_bytes().splitlines():
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(record, dict) and type(step := record.get("step")) is int and step >= 0:
            while records and records[-1]["step"] >= step:
                records.pop()
            records.append(record)
    return records


def curve_of(records: Sequence[Record], metric: str) -> Curve:
    """Return the finite values of a metric; records without one are left out."""
    points = [
        (record["step"], value)
        for record in records
        if isinstance(value := record.get(metric), int | float) and math.isfinite(value)
    ]
    steps, values = np.array(points, np.float64).reshape(-1, 2).T
    return Curve(steps, values)


def smoothed(curve: Curve, last_step: float) -> Curve:
    """Return the means of the points in each of POINTS equal intervals from step 0 to last_step."""
    intervals = np.floor(curve.steps * POINTS / (last_step + 1)).astype(int)
    counts = np.bincount(intervals, minlength=POINTS)
    filled = counts > 0
    means = (np.bincount(intervals, weights=part, minlength=POINTS)[filled] / counts[filled] for part in curve)
    return Curve(*means)


def draw(curves: Sequence[tuple[str, Sequence[Record]]], path: Path) -> None:
    """Draw the validation and the training loss of attempts over their steps.

    curves: the name and the records of each attempt. path: the file, in the format of its suffix, such as .png or .pdf.
    Raises OSError if it cannot be written, and ValueError for another suffix.
    """
    # No pyplot, which keeps figures and looks for a display. The import takes half a second.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # the first use builds a list of fonts, and reports it
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    losses, validations = ([curve_of(records, metric) for _, records in curves] for metric in (LOSS, VALIDATION))
    last_step = max((curve.steps.max() for curve in (*losses, *validations) if len(curve.steps)), default=0)
    means = [smoothed(loss, last_step) for loss in losses]
    validated = any(len(validation.steps) for validation in validations)

    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1 + validated, 1, sharex=True, squeeze=False)[:, 0]
    labels = [name for name, _ in curves]
    lines = []
    for number, (loss, mean, validation) in enumerate(zip(losses, means, validations, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        panels[-1].plot(*loss, color=colour, linewidth=0.5, alpha=0.3)
        lines += panels[-1].plot(*mean, color=colour)
        if len(validation.steps):
            best = int(validation.values.argmin())
            panels[0].plot(*validation, color=colour, marker="*", markersize=11, markevery=[best])
            labels[number] += f", lowest {validation.values[best]:.3f} at step {validation.steps[best]:,.0f}"
    _describe(panels[-1], "Training loss", "nats per target token")
    panels[-1].set_xlabel("step")
    if validated:
        _describe(panels[0], "Validation: lower is better", "nats per character")
    for text in figure.legend(lines, labels, loc="outside lower left", fontsize=9, frameon=False).get_texts():
        text.set_parse_math(False)  # a "$" in a name is no formula
        text.set_fontfamily(["DejaVu Sans", *CHINESE_FONTS])

    with replacing(path) as part, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of characters that no font has
        figure.savefig(part, format=path.suffix[1:])


def _describe(panel: Any, title: str, unit: str) -> None:
    from matplotlib.ticker import MaxNLocator

    panel.set_title(title, loc="left", fontsize=11)
    panel.set_ylabel(unit)
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
