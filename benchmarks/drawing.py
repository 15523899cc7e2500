"""Plots of measurements, as PNG files."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.benchmark import log


class Curve(NamedTuple):
    """What one panel shows."""

    title: str
    x: Sequence[float]
    y: Sequence[float]


def draw(curves: Sequence[Curve], file: Path, label: str = "", logarithmic: bool = False) -> None:
    """Draw a panel for each curve: side by side, or, along a common axis of x that begins at 0, below each other."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    shape = (1, len(curves)) if logarithmic else (len(curves), 1)
    size = (4 * len(curves), 3.5) if logarithmic else (7, 2 * len(curves))
    figure, panels = pyplot.subplots(*shape, figsize=size, sharex=not logarithmic, sharey=logarithmic, squeeze=False)
    for panel, curve in zip(panels.flat, curves, strict=True):
        panel.plot(curve.x, curve.y, marker="o" if logarithmic else None)
        panel.set_title(curve.title.replace("_", " "))
        panel.grid(alpha=0.3)
        if logarithmic:
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_xticks(curve.x, [f"{x:,}" for x in curve.x])
        else:
            panel.set_ylim(bottom=0)
    panels[-1, 0].set_xlabel("" if logarithmic else "minutes")
    panels[0, 0].set_ylabel(label)
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    log(f"Drawn: {file}")
