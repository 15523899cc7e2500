"""Draw the charts of benchmarks/README.md from its tables.

    python docs/pictures/benchmark_charts.py

A cell has a value and, after +-, its error; or another column has the lowest and the highest one, "4,608 to 4,789".
tests/test_pictures.py fails where a chart is not that of the tables. The files are written without a library: their
text stays text, they are a few kilobytes, and the same on each machine.
"""

import dataclasses
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

PICTURES = Path(__file__).resolve().parent
BENCHMARKS = PICTURES.parents[1] / "benchmarks" / "README.md"

WIDTH = 800  # pixels, about that of a page on GitHub
GAP, ROW, BAR, LINE = 16, 26, 14, 14
FONT_SIZE, CHARACTER = 12, 7.0  # pixels; the width of a Latin character, more than the mean
TEXT, MUTED, OURS, OTHERS = "#1f2328", "#59636e", "#2f6f66", "#b5bfc9"


@dataclasses.dataclass(frozen=True)
class Bar:
    """A value with its bounds, which are the value itself where no spread is known, and how the table writes them."""

    label: str
    value: float
    low: float
    high: float
    written: str
    ours: bool


@dataclasses.dataclass(frozen=True)
class Chart:
    """A table's column as bars.

    table: its first heading and that of the value. bounds: heading of a column with the lowest and highest value.
    start: of the axis; other than 0, values are points. end: of the axis; else the largest value. names: the rows that
    are drawn, by how their labels begin, and the labels to write; else all.
    """

    title: str
    note: str
    table: tuple[str, str]
    bounds: str = ""
    start: float = 0.0
    end: float = 0.0
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)


ROUNDS = "medians; lowest and highest round"
QUALITY = Chart(
    "Nats per character: less is better",
    "± other seeds, where known; the axis begins at 4.2",
    ("model", "nats per character"),
    start=4.2,
)
RATINGS = Chart(
    "Ratings of replies", "mean of % sensible and % specific; ± one standard error", ("replies", "both"), end=100.0
)
SPEED = Chart("Tokens a second in training: LSTM", ROUNDS, ("", "LSTM, tokens/s"), bounds="LSTM, rounds")
ONE_CLIENT = Chart("Replies a second, 1 client", ROUNDS, ("search", "1 client"), bounds="1 client, rounds")
CLIENTS = Chart("Replies a second, 64 clients", ROUNDS, ("search", "64 clients"), bounds="64 clients, rounds")
TORCH = "the same model in tuned PyTorch 2.13"
SYSTEMS = {
    "this project, bfloat16": "this project, bfloat16",
    f"{TORCH}, bfloat16": "PyTorch, bfloat16",
    "this project, float32": "this project, float32",
    f"{TORCH}, float32": "PyTorch, float32",
    "OpenNMT-py 3.5.1, float32": "OpenNMT-py, float32",
}
SPEEDS = (
    dataclasses.replace(SPEED, names=SYSTEMS),
    Chart("Transformer", ROUNDS, ("", "Transformer, tokens/s"), bounds="Transformer, rounds", names=SYSTEMS),
)
SCALING = Chart(
    "Rate of training, beside one tower or process",
    "lowest and highest of other runs, where there were any",
    ("on 2 cores", "rate, beside one"),
    bounds="other runs",
)
# The charts of a file stand side by side.
FILES: Mapping[str, Sequence[Chart]] = {
    "quality.svg": [QUALITY],
    "ratings.svg": [RATINGS],
    "speed.svg": SPEEDS,
    "serving.svg": [ONE_CLIENT, CLIENTS],
    "scaling.svg": [SCALING],
}


def main() -> int:
    """Write all charts."""
    text = BENCHMARKS.read_text(encoding="utf-8")
    for name, charts in FILES.items():
        (PICTURES / name).write_text(drawing(charts, text), encoding="utf-8")
    return 0


def bars(chart: Chart, text: str) -> list[Bar]:
    """The bars of a chart. text: with the table. Raises ValueError where it, a row or a number is missing."""
    rows = table(text, *chart.table)
    found = []
    for row in rows:
        cell = row[chart.table[1]].replace("*", "")
        number = re.match(r"([\d,.]+)%?(?: \+- ([\d,.]+))?", cell)
        if not number:
            raise ValueError(f"benchmarks/README.md, column {chart.table[1]}: {cell!r} is no number")
        value = float(number[1].replace(",", ""))
        error = float((number[2] or "0").replace(",", ""))
        bounds = re.match(r"([\d,.]+) to ([\d,.]+)", row[chart.bounds] if chart.bounds else "")
        low, high = (
            (float(bound.replace(",", "")) for bound in bounds.groups()) if bounds else (value - error, value + error)
        )
        label = row[chart.table[0]]
        plain = re.split(r"; | \(", label.replace("**", "").replace("`", ""))[0]
        found.append(Bar(plain, value, low, high, number[0].replace("+-", "±"), "**" in label))
    if not chart.names:
        return found
    named = [(name, [bar for bar in found if bar.label.startswith(start)]) for start, name in chart.names.items()]
    if missing := [name for name, matching in named if len(matching) != 1]:
        raise ValueError(f"benchmarks/README.md, column {chart.table[1]}: no row, or several, for {missing}")
    return [dataclasses.replace(bar, label=name) for name, [bar] in named]


def table(text: str, first: str, column: str) -> list[dict[str, str]]:
    """The rows of the only table with these headings. Raises ValueError where there is none, or several."""
    found = []
    for lines in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        headings, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines())
        if headings[0] == first and column in headings:
            # Of columns with the same heading, the first.
            found.append([dict(zip(headings[::-1], row[::-1], strict=True)) for row in rows])
    if len(found) != 1:
        raise ValueError(f"benchmarks/README.md: {len(found)} tables have the columns {first!r} and {column!r}")
    return found[0]


def drawing(charts: Sequence[Chart], text: str) -> str:
    """The SVG file of charts side by side, on white, so that it can be read on a dark page, too."""
    width = (WIDTH - GAP * (len(charts) + 1)) // len(charts)
    parts, heights = [], []
    for number, chart in enumerate(charts):
        lines, height = panel(chart, bars(chart, text), GAP + number * (width + GAP), width)
        parts += lines
        heights.append(height)
    height = max(heights)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="{FONT_SIZE}" fill="{TEXT}">'
    )
    background = f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>'
    return "\n".join([head, background, *parts, "</svg>", ""])


def panel(chart: Chart, rows: Sequence[Bar], x: int, width: int) -> tuple[list[str], int]:
    """The elements of one chart, and its height."""
    labels = min(max(text_width(bar.label, bar.ours) for bar in rows), width * 0.5)
    values = max(text_width(bar.written) for bar in rows)
    axis = round(x + labels + 8)
    pixels = (x + width - 8 - values - axis) / ((chart.end or max(bar.high for bar in rows)) - chart.start)

    def place(value: float) -> float:
        return round(axis + (value - chart.start) * pixels, 1)

    parts = [f'<text x="{x}" y="24" font-size="14" font-weight="bold">{escape(chart.title)}</text>']
    if chart.note:
        parts.append(f'<text x="{x}" y="41" fill="{MUTED}">{escape(chart.note)}</text>')
    y = top = 52 if chart.note else 34
    for bar in rows:
        # Lines of a share of the width, since their characters differ in width.
        lines = textwrap.wrap(bar.label, int(len(bar.label) * labels / text_width(bar.label, bar.ours)) + 1)
        height = LINE * len(lines) + ROW - LINE
        middle = y + height // 2
        weight = "bold" if bar.ours else "normal"
        for number, line in enumerate(lines):
            base = middle + 4 + LINE * number - LINE * (len(lines) - 1) // 2
            parts.append(
                f'<text x="{axis - 8}" y="{base}" text-anchor="end" font-weight="{weight}">{escape(line)}</text>'
            )
        colour = OURS if bar.ours else OTHERS
        if chart.start:
            parts.append(f'<circle cx="{place(bar.value)}" cy="{middle}" r="5" fill="{colour}"/>')
        else:
            size = f'width="{place(bar.value) - axis:.1f}" height="{BAR}"'
            parts.append(f'<rect x="{axis}" y="{middle - BAR // 2}" {size} fill="{colour}"/>')
        if bar.low < bar.high:
            low, high = place(bar.low), place(bar.high)
            path = f"M{low} {middle}H{high}M{low} {middle - 4}v8M{high} {middle - 4}v8"
            parts.append(f'<path d="{path}" stroke="{TEXT}" stroke-width="1.5" fill="none"/>')
        parts.append(f'<text x="{place(bar.high) + 8:.1f}" y="{middle + 4}">{escape(bar.written)}</text>')
        y += height
    parts.append(f'<path d="M{axis} {top}V{y}" stroke="{MUTED}"/>')
    return parts, y + 12


def text_width(text: str, bold: bool = False) -> float:
    """At most how wide a text is, in pixels; a Chinese character is as wide as high."""
    return sum(FONT_SIZE if ord(character) > 0x2E7F else CHARACTER for character in text) * (1.1 if bold else 1)


if __name__ == "__main__":
    sys.exit(main())
