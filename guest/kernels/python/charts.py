"""Describes matplotlib figures as data, in the form that E2B's clients read (`result.chart`).

A figure with one pair of axes is a chart; one with several is a `superchart` of them.
"""
import datetime
import re

import numpy
from matplotlib import category, dates
from matplotlib.collections import PathCollection
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle, Wedge
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FixedLocator


def describe(figure):
    """The chart of a figure; None if nothing was drawn."""
    axes = figure.get_axes()
    if not any(ax.has_data() for ax in axes):
        return None
    if len(axes) == 1:
        return describe_axes(axes[0])
    title = getattr(figure, "_suptitle", None)
    return {
        "type": "superchart",
        "title": (title.get_text() if title else "") or None,
        "elements": [describe_axes(ax) for ax in axes],
    }


def describe_axes(ax):
    kind = kind_of(ax)
    chart = {"type": kind, "title": ax.get_title() or None, "elements": []}
    return {**chart, **DESCRIBERS[kind](ax)}


def kind_of(ax):
    drawn = [artist for artist in ax.get_children() if is_drawn(ax, artist)]
    lines = [artist for artist in drawn if isinstance(artist, Line2D)]
    if len(lines) == len(drawn):
        return "line"
    if all(isinstance(artist, (PathPatch, Line2D)) for artist in drawn):
        return "box_and_whisker"
    # Lines across other charts mark averages and limits.
    rest = [artist for artist in drawn if not (isinstance(artist, Line2D) and is_straight(artist))]
    for kind, artists in (("scatter", PathCollection), ("pie", Wedge), ("bar", Rectangle)):
        if all(isinstance(artist, artists) for artist in rest):
            return kind
    return "unknown"


def is_drawn(ax, artist):
    """Whether the caller's code added the artist; the frame, the axis and texts come with every chart."""
    own = [ax.patch, ax.xaxis, ax.yaxis, ax.get_legend(), *ax.spines.values(), *ax.child_axes]
    return not isinstance(artist, Text) and not any(artist is part for part in own)


def is_straight(line):
    """A horizontal or vertical line of two points."""
    x, y = line.get_xdata(), line.get_ydata()
    return len(x) == len(y) == 2 and (x[0] == x[1] or y[0] == y[1])


def labels_of(ax):
    x, y = ax.get_xlabel() or None, ax.get_ylabel() or None
    return {"x_label": x, "y_label": y, "x_unit": unit_in(x), "y_unit": unit_in(y)}


def unit_in(label):
    """`Time (s)` and `Mass [kg]` name their unit."""
    found = re.search(r"(?<=\s)\(([^()]+)\)|\[([^\[\]]+)\]", label or "")
    return (found[1] or found[2]) if found else None


def turned(labels):
    """The labels of a chart whose values lie on the x axis, as if they lay on the y axis."""
    return {f"{one}_{what}": labels[f"{other}_{what}"] for one, other in ("xy", "yx") for what in ("label", "unit")}


# Axes


def converter_of(axis):
    return axis.get_converter() if hasattr(axis, "get_converter") else axis.converter


def has_dates(axis):
    converter = converter_of(axis)
    return isinstance(converter, (dates.DateConverter, dates._SwitchableDateConverter)) or "Date" in type(converter).__name__


def scale_of(axis):
    if has_dates(axis):
        return "datetime"
    if isinstance(converter_of(axis), category.StrCategoryConverter):
        return "categorical"
    scale = axis.get_scale()
    if scale != "linear":
        return scale
    # Names that were set by hand, as in `plt.xticks(range(3), ["a", "b", "c"])`.
    names = tick_names(axis)
    places = list(axis.get_majorticklocs())
    is_counted = places and all(place == index for index, place in enumerate(places))
    is_named = isinstance(axis.get_major_formatter(), FixedFormatter) and all(
        name != str(index) for index, name in enumerate(names)
    )
    return "categorical" if is_counted and is_named else "linear"


def tick_names(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def axis_fields(name, axis):
    places = axis.get_majorticklocs()
    ticks = [dates.num2date(place).isoformat() for place in places] if has_dates(axis) else [float(place) for place in places]
    return {f"{name}_ticks": ticks, f"{name}_tick_labels": tick_names(axis), f"{name}_scale": scale_of(axis)}


def point_fields(ax):
    return {**labels_of(ax), **axis_fields("x", ax.xaxis), **axis_fields("y", ax.yaxis)}


def coordinate(value, axis=None):
    """One coordinate: dates as ISO text, everything else as a number or text."""
    if isinstance(value, numpy.datetime64):
        return str(value.astype("datetime64[s]"))
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    if axis is not None and has_dates(axis):
        return dates.num2date(value).isoformat()
    try:
        return value if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return str(value)


# Charts


def line_chart(ax):
    # Lines that mark an average or a limit are left out, unless there are no others.
    lines = [line for line in ax.get_lines() if not is_straight(line)] or ax.get_lines()
    elements = [
        {
            "label": re.sub(r"^_child(\d+)$", r"Line \1", line.get_label()),
            "points": [[coordinate(x), coordinate(y)] for x, y in zip(line.get_xdata(), line.get_ydata())],
        }
        for line in lines
    ]
    return {**point_fields(ax), "elements": elements}


def scatter_chart(ax):
    elements = [
        {
            "label": dots.get_label(),
            "points": [[coordinate(x, ax.xaxis), coordinate(y, ax.yaxis)] for x, y in dots.get_offsets().tolist()],
        }
        for dots in ax.collections
    ]
    return {**point_fields(ax), "elements": elements}


def pie_chart(ax):
    wedges = [patch for patch in ax.patches if isinstance(patch, Wedge)]
    return {
        "elements": [
            {
                "label": wedge.get_label(),
                "angle": rounded(abs(wedge.theta2 - wedge.theta1), SINGLE),
                "radius": float(wedge.r),
            }
            for wedge in wedges
        ]
    }


def bar_chart(ax):
    elements, is_turned = [], False
    for number, bars in enumerate(ax.containers):
        if not all(isinstance(bar, Rectangle) for bar in bars):
            continue
        group = bars.get_label()
        group = f"Group {number}" if group.startswith("_container") else group
        is_turned = getattr(bars, "orientation", None) == "horizontal"
        axis = ax.yaxis if is_turned else ax.xaxis
        for bar in bars:
            (start, extent), value = (
                ((bar.get_y(), bar.get_height()), bar.get_width())
                if is_turned
                else ((bar.get_x(), bar.get_width()), bar.get_height())
            )
            elements.append({"label": name_at(axis, start + extent / 2), "group": group, "value": float(value)})
    labels = labels_of(ax)
    return {**(turned(labels) if is_turned else labels), "elements": elements}


def name_at(axis, place):
    """What the axis calls a place: the name of the nearest tick if ticks were named, else the number."""
    places = list(axis.get_majorticklocs())
    is_named = scale_of(axis) == "categorical" or isinstance(axis.get_major_formatter(), FixedFormatter)
    if is_named and places:
        nearest = min(range(len(places)), key=lambda index: abs(places[index] - place))
        names = tick_names(axis)
        if nearest < len(names) and names[nearest]:
            return names[nearest]
    return str(coordinate(rounded(place), axis)) if has_dates(axis) else f"{rounded(place):g}"


def box_chart(ax):
    # A box plot fixes the ticks of the axis that its boxes stand on.
    is_turned = isinstance(ax.yaxis.get_major_locator(), FixedLocator) and not isinstance(
        ax.xaxis.get_major_locator(), FixedLocator
    )
    axis = ax.yaxis if is_turned else ax.xaxis
    lines = [(line, spots_of(line.get_xydata(), is_turned)) for line in ax.get_lines()]
    strokes = [spots for line, spots in lines if line.get_linestyle() not in NO_STROKE]
    dots = [spot for line, spots in lines if line.get_linestyle() in NO_STROKE for spot in spots]
    boxes = [patch for patch in ax.patches if isinstance(patch, PathPatch)]
    elements = [box_fields(spots_of(box.get_path().vertices, is_turned), strokes, dots, axis) for box in boxes]
    labels = labels_of(ax)
    return {**(turned(labels) if is_turned else labels), "elements": elements}


NO_STROKE = ("None", "none", " ", "")


def spots_of(points, is_turned):
    """Pairs of the place along the boxes and the value."""
    return [((y, x) if is_turned else (x, y)) for x, y in points]


def box_fields(corners, strokes, dots, axis):
    left, right = min(at for at, _ in corners), max(at for at, _ in corners)
    low, high = min(value for _, value in corners), max(value for _, value in corners)
    ours = [line for line in strokes if len(line) == 2 and all(left <= at <= right for at, _ in line)]
    # Whiskers stand upright; the line of the median lies in the box and is wider than the ends of the whiskers.
    upright = [line for line in ours if line[0][0] == line[1][0]]
    flat = [line for line in ours if line[0][0] != line[1][0] and low <= line[0][1] <= high]
    flat.sort(key=lambda line: abs(line[1][0] - line[0][0]))
    ends = [value for line in upright for _, value in line] + [low, high]
    least, most = min(ends), max(ends)
    outliers = [value for at, value in dots if left <= at <= right and not least <= value <= most]
    return {
        "label": name_at(axis, (left + right) / 2),
        "min": rounded(least),
        "first_quartile": rounded(low),
        "median": rounded(flat[-1][0][1]) if flat else None,
        "third_quartile": rounded(high),
        "max": rounded(most),
        "outliers": [rounded(value) for value in outliers],
    }


# PLATFORM: matplotlib keeps the angles of a pie in single precision.
SINGLE = 7


def rounded(number, digits=9):
    """Without the noise of floating point."""
    return float(f"{float(number):.{digits}g}")


DESCRIBERS = {
    "line": line_chart,
    "scatter": scatter_chart,
    "pie": pie_chart,
    "bar": bar_chart,
    "box_and_whisker": box_chart,
    "unknown": lambda ax: {},
}
