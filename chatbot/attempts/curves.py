"""Reads the records in metrics.jsonl and plots the learning curves of attempts."""

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
# The palette of Okabe and Ito (2008), which colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# The number of points of the smoothed training curve, which is drawn over the pale curve of all records.
POINTS = 100
# Figure size in inches, and dots per inch.
WIDTH = 6.0
HEIGHT = 6.5
DPI = 150
# Common font families with Chinese characters on Linux, macOS and Windows.
CHINESE_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei"),
    *("PingFang SC", "Hiragino Sans GB", "Heiti SC", "Microsoft YaHei", "SimHei", "SimSun"),
)


class Curve(NamedTuple):
    """A learning curve: the steps and values of a metric."""

    steps: npt.NDArray[np.float64]  # [points]
    values: npt.NDArray[np.float64]  # [points]


def read_records(path: Path) -> list[Record]:
    """Return the records of a metrics.jsonl file sorted by step; an empty list if the file does not exist.

    Invalid lines are skipped, such as a line that is still being written. A resumed run may repeat steps. In this case,
    only the later record of each repeated step is returned.
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
    """Return the curve of a metric, skipping records without a finite value."""
    points = [
        (record["step"], value)
        for record in records
        if isinstance(value := record.get(metric), int | float) and math.isfinite(value)
    ]
    steps, values = np.array(points, np.float64).reshape(-1, 2).T
    return Curve(steps, values)


def smooth(curve: Curve, last_step: float) -> Curve:
    """Average a curve over POINTS equal intervals between step 0 and `last_step`, skipping empty intervals."""
    intervals = np.floor(curve.steps * POINTS / (last_step + 1)).astype(int)
    counts = np.bincount(intervals, minlength=POINTS)
    filled = counts > 0
    means = (np.bincount(intervals, weights=part, minlength=POINTS)[filled] / counts[filled] for part in curve)
    return Curve(*means)


def draw(curves: Sequence[tuple[str, Sequence[Record]]], path: Path) -> None:
    """Plot the validation loss and the training loss of attempts over their steps.

    Args:
        curves: The name and the records of each attempt.
        path: The file to write. Its suffix, such as .png or .pdf, determines the format.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If the suffix is not supported.
    """
    # Matplotlib is imported here because the import is slow. pyplot is avoided because it looks for a display.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # hides a message about the font cache on the first use
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    losses, validations = ([curve_of(records, metric) for _, records in curves] for metric in (LOSS, VALIDATION))
    last_step = max((curve.steps.max() for curve in (*losses, *validations) if len(curve.steps)), default=0)
    means = [smooth(loss, last_step) for loss in losses]
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
        text.set_parse_math(False)  # names can contain "$"
        text.set_fontfamily(["DejaVu Sans", *CHINESE_FONTS])

    with replacing(path) as part, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # glyphs missing from all fonts
        figure.savefig(part, format=path.suffix[1:])


def _describe(panel: Any, title: str, unit: str) -> None:
    from matplotlib.ticker import MaxNLocator

    panel.set_title(title, loc="left", fontsize=11)
    panel.set_ylabel(unit)
    panel.grid(alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
