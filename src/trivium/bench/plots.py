"""Plots as SVG text: axes with round numbers, lines, bars of requests, intervals. Colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from msgspec import Struct

WIDTH, HEIGHT = 560, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 12, 40
NUM_COLOURS = 6
TICKS = 5
LOG_RATIO = 30.0  # values that span more than this are shown on a logarithmic axis


class Series(Struct, frozen=True):
    name: str
    points: list[tuple[float, float]]
    colour: int = 0
    marks: bool = False  # a dot for each point


class Bar(Struct, frozen=True):
    """A request: waiting from `begin` to `middle`, answering until `end`."""

    begin: float
    middle: float
    end: float
    failed: bool
    tip: str


class Interval(Struct, frozen=True):
    name: str
    low: float
    middle: float
    high: float
    tip: str


class Scale(Struct, frozen=True):
    """From values to places on an axis."""

    low: float
    high: float
    logarithmic: bool = False
    whole: bool = False  # of things that are counted: no ticks between them

    @classmethod
    def over(cls, values: Sequence[float], *, zero: bool = False, may_log: bool = False) -> Scale:
        low, high = min(values, default=0.0), max(values, default=1.0)
        if may_log and low > 0 and high / low > LOG_RATIO:
            return cls(low, high, True)
        if zero:
            low = min(low, 0.0)
        return cls(low, high if high > low else low + 1)

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        if self.logarithmic:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if len(decades) <= 4 else (1,)
            candidates = (step * 10.0**decade for decade in decades for step in steps)
        else:
            step = round_step((self.high - self.low) / TICKS)
            if self.whole:
                step = max(1.0, step)
            first = math.ceil(self.low / step - 1e-9)
            candidates = (step * number for number in range(first, math.floor(self.high / step + 1e-9) + 1))
        return [tick for tick in candidates if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9)]


def round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= rough * (1 - 1e-9)), 10 * power)


def line_plot(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    may_log_x: bool = False,
    y_high: float | None = None,
    y_line: float | None = None,
    whole_y: bool = False,
    height: int = HEIGHT,
) -> str:
    """`y_line`: a level to draw across, such as a limit."""
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    x_scale = Scale.over(xs, zero=not may_log_x, may_log=may_log_x)
    y_scale = Scale(0.0, (y_high if y_high is not None else max(ys, default=0.0) * 1.05) or 1.0, whole=whole_y)
    place_x, place_y = _places(x_scale, y_scale, height)
    parts = [*_axes(x_scale, y_scale, place_x, place_y, x_label, y_label, height)]
    if y_line is not None:
        parts.append(
            f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place_y(y_line)}" y2="{place_y(y_line)}"/>'
        )
    for one in series:
        colour = f"c{one.colour % NUM_COLOURS}"
        path = " ".join(f"{place_x(x)},{place_y(y)}" for x, y in one.points)
        parts.append(f'<polyline class="line {colour}" points="{path}"><title>{escape(one.name)}</title></polyline>')
        if one.marks:
            parts += [_mark(place_x(x), place_y(y), colour, f"{one.name}: {x:.4g}, {y:.4g}") for x, y in one.points]
    return _svg(parts, height)


def request_bars(bars: Sequence[Bar], x_label: str) -> str:
    """One line for each request, in the order given: how long it waited, how long it was answered."""
    row = max(1.2, min(12.0, 320 / max(1, len(bars))))
    height = round(TOP + BOTTOM + row * len(bars))
    x_scale = Scale.over([bar.end for bar in bars], zero=True)
    place_x, _ = _places(x_scale, Scale(0, 1), height)
    parts = [*_x_axis(x_scale, place_x, x_label, height)]
    for index, bar in enumerate(bars):
        y = f"{TOP + index * row:.1f}"
        thick = f"{row * 0.8:.1f}"
        spans = (
            [("failed", bar.begin, bar.end)]
            if bar.failed
            else [("wait", bar.begin, bar.middle), ("work", bar.middle, bar.end)]
        )
        for kind, begin, end in spans:
            wide = max(place_x(end) - place_x(begin), 0.5)
            parts.append(
                f'<rect class="{kind}" x="{place_x(begin)}" y="{y}" width="{wide:.1f}" height="{thick}">'
                f"<title>{escape(bar.tip)}</title></rect>"
            )
    return _svg(parts, height)


def interval_plot(intervals: Sequence[Interval], x_label: str) -> str:
    """Ratios about 1, one line for each."""
    row, left = 34, 110
    height = TOP + BOTTOM + row * len(intervals)
    ends = [value for one in intervals for value in (one.low, one.high)]
    reach = max(0.05, *(abs(value - 1) for value in ends)) * 1.1 if ends else 0.1
    x_scale = Scale(max(0.0, 1 - reach), 1 + reach)

    def place(value: float) -> float:
        return round(left + x_scale.share(value) * (WIDTH - RIGHT - left), 1)

    parts = [*_x_axis(x_scale, place, x_label, height)]
    parts.append(f'<line class="limit" x1="{place(1)}" x2="{place(1)}" y1="{TOP}" y2="{height - BOTTOM}"/>')
    for index, one in enumerate(intervals):
        y = TOP + row * (index + 0.5)
        parts.append(f'<text class="name" x="{left - 12}" y="{y + 4}" text-anchor="end">{escape(one.name)}</text>')
        parts.append(f'<line class="line c0 thick" x1="{place(one.low)}" x2="{place(one.high)}" y1="{y}" y2="{y}"/>')
        parts.append(_mark(place(one.middle), y, "c0", one.tip))
    return _svg(parts, height)


def _mark(x: float, y: float, colour: str, tip: str) -> str:
    return f'<circle class="mark {colour}" cx="{x}" cy="{y}" r="4"><title>{escape(tip)}</title></circle>'


Place = Callable[[float], float]


def _places(x_scale: Scale, y_scale: Scale, height: int) -> tuple[Place, Place]:
    def place_x(value: float) -> float:
        return round(LEFT + x_scale.share(value) * (WIDTH - LEFT - RIGHT), 1)

    def place_y(value: float) -> float:
        return round(height - BOTTOM - y_scale.share(value) * (height - TOP - BOTTOM), 1)

    return place_x, place_y


def _axes(
    x_scale: Scale, y_scale: Scale, place_x: Place, place_y: Place, x_label: str, y_label: str, height: int
) -> Iterator[str]:
    for tick in y_scale.ticks():
        y = place_y(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{tick_text(tick)}</text>'
    middle = (TOP + height - BOTTOM) / 2
    yield f'<text class="label" x="12" y="{middle}" transform="rotate(-90 12 {middle})" text-anchor="middle">{escape(y_label)}</text>'
    yield from _x_axis(x_scale, place_x, x_label, height)


def _x_axis(x_scale: Scale, place_x: Place, label: str, height: int) -> Iterator[str]:
    bottom = height - BOTTOM
    for tick in x_scale.ticks():
        x = place_x(tick)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>'
        yield f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{tick_text(tick)}</text>'
    yield f'<text class="label" x="{WIDTH - RIGHT}" y="{height - 6}" text-anchor="end">{escape(label)}</text>'


def tick_text(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{round(value, 10):g}"


def _svg(parts: Sequence[str], height: int) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'
