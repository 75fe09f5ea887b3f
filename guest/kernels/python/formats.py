"""What a value looks like for E2B's clients: from MIME types to the fields of a result."""
import base64
import json
import sys
import types

NAMES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}


# The other files of the kernel by name, and its directory; set by main.py.
PARTS = {}
HERE = ""


def part(name):
    """Loads a file of the kernel under a name that no program of the sandbox uses."""
    known = f"ringfence_kernel_{name}"
    if known not in sys.modules:
        module = sys.modules[known] = types.ModuleType(known)
        exec(compile(PARTS[name], f"<ringfence {name}>", "exec"), module.__dict__)
    return sys.modules[known]


def fields_of(bundle):
    """A MIME bundle as the fields of a result; types that E2B does not name are in `extra`."""
    fields, extra = {}, {}
    for mime, data in bundle.items():
        data = base64.b64encode(data).decode() if isinstance(data, (bytes, bytearray)) else data
        (fields if mime in NAMES else extra)[NAMES.get(mime, mime)] = data
    return {**fields, "extra": extra} if extra else fields


def additions(value):
    """What E2B adds to notebooks: the columns of data frames, the data of charts, JSON for lists and dictionaries."""
    found = {}
    for mime, describe in (("e2b/data", frame_data), ("e2b/chart", chart_data), ("application/json", json_data)):
        try:
            data = describe(value)
        except Exception:
            continue  # A value that cannot be described is still shown as text.
        if data is not None:
            found[mime] = data
    return found


def frame_data(value):
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, pandas.DataFrame):
        return own_format(value, "_repr_e2b_data_")
    columns = value.to_dict(orient="list")
    return {str(name): [plain(cell, str) for cell in cells] for name, cells in columns.items()}


def chart_data(value):
    figures = sys.modules.get("matplotlib.figure")
    if figures is None or not isinstance(value, figures.Figure):
        return own_format(value, "_repr_e2b_chart_")
    return part("charts").describe(value)


def own_format(value, method):
    found = None if isinstance(value, type) else getattr(value, method, None)
    return plain(found()) if callable(found) else None


def json_data(value):
    return plain(value) if isinstance(value, (list, dict)) and len(value) <= MOST_ITEMS else None


def plain(value, otherwise=None):
    """A value as JSON can carry it; raises TypeError if it cannot and there is no other form."""
    if value is None or isinstance(value, (bool, int, str)):
        return value if type(value) in (type(None), bool, int, str) else plain_base(value)
    if isinstance(value, float):
        return float(value) if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): plain(one, otherwise) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one, otherwise) for one in value]
    if hasattr(value, "isoformat"):
        # PLATFORM: pandas has a time that is none, unequal to itself.
        return value.isoformat() if value == value else None
    if hasattr(value, "tolist"):
        return plain(value.tolist(), otherwise)
    if otherwise is None:
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return otherwise(value)


def plain_base(value):
    """Enumerations and other subclasses of plain types."""
    return str.__str__(value) if isinstance(value, str) else int(value)


# The host ends a kernel that writes a longer line than it can hold.
MOST = 32 << 20
# Nobody reads longer lists, and they take seconds.
MOST_ITEMS = 100_000
# What a result can do without, the least useful first.
SPARE = ("chart", "data", "json", "extra", "pdf", "svg", "html", "latex", "markdown", "jpeg", "png", "javascript", "text")


def encoded(message):
    """A message as one line of JSON, whatever is in it; formats that are too large are left out."""
    line = dumped(message)
    for name in SPARE:
        if len(line) <= MOST:
            break
        if message.pop(name, None) is not None:
            line = dumped(message)
    return line


def dumped(message):
    try:
        return json.dumps(message, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(plain(message, repr))
