"""The Python kernel of the code interpreter: one JSON request per line on standard input, JSON lines with a marker on
standard output.

It runs inside the sandbox and needs only the standard library. What child processes and C code print directly reaches
the host without a marker and counts as output.
"""
import ast
import asyncio
import base64
import inspect
import io
import json
import linecache
import os
import signal
import subprocess
import sys
import time
import traceback

MARK = "\x1e" + os.environ.pop("RINGFENCE_KERNEL", "") + " "
requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
# The code must not read our requests from standard input.
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def send(kind, **fields):
    answers.write(MARK + json.dumps({"type": kind, **fields}) + "\n")
    answers.flush()


class Output(io.TextIOBase):
    """Standard output or error of the code, sent as messages."""

    def __init__(self, kind, fd):
        self.kind = kind
        self.fd = fd
        self.waiting = ""

    @property
    def encoding(self):
        return "utf-8"

    def writable(self):
        return True

    def fileno(self):
        return self.fd

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not " + type(text).__name__)
        self.waiting += text
        if "\n" in text or len(self.waiting) > 8192:
            self.flush()
        return len(text)

    def flush(self):
        text, self.waiting = self.waiting, ""
        if text:
            send(self.kind, text=text, timestamp=time.time_ns() // 1000)


FORMATS = {
    "_repr_html_": "html",
    "_repr_markdown_": "markdown",
    "_repr_svg_": "svg",
    "_repr_png_": "png",
    "_repr_jpeg_": "jpeg",
    "_repr_pdf_": "pdf",
    "_repr_latex_": "latex",
    "_repr_json_": "json",
    "_repr_javascript_": "javascript",
}
MIMES = {
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
}


def plain(value):
    """Encodes bytes, such as images, for JSON."""
    return base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray)) else value


def formats_of(value):
    shown = {"text": repr(value)}
    bundle = getattr(value, "_repr_mimebundle_", None)
    if callable(bundle) and not inspect.isclass(value):
        data = bundle()
        data = data[0] if isinstance(data, tuple) else data
        shown.update({MIMES[mime]: plain(one) for mime, one in (data or {}).items() if mime in MIMES})
    for method, name in FORMATS.items():
        found = getattr(value, method, None)
        if callable(found) and not inspect.isclass(value):
            try:
                data = found()
            except Exception:
                continue
            data = data[0] if isinstance(data, tuple) else data
            if data is not None:
                shown[name] = plain(data)
    return shown


def show(value, main=False):
    sys.stdout.flush()
    send("result", is_main_result=main, **formats_of(value))


def display(*values):
    """Sends values in every format that they support."""
    for value in values:
        show(value)


def show_figures():
    """Sends the matplotlib figures that the code left open."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    for number in pyplot.get_fignums():
        buffer = io.BytesIO()
        figure = pyplot.figure(number)
        figure.savefig(buffer, format="png")
        send("result", is_main_result=False, text=repr(figure), png=plain(buffer.getvalue()))
    pyplot.close("all")


def shell(line):
    """Runs `!command`, as in notebooks."""
    done = subprocess.run(["/bin/bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    sys.stdout.write(done.stdout.decode("utf-8", "replace"))
    sys.stderr.write(done.stderr.decode("utf-8", "replace"))


def without_magic(code):
    """Turns lines that begin with `!` into shell calls, unless the code is valid Python as it stands."""
    try:
        ast.parse(code)
        return code
    except SyntaxError:
        pass
    lines = []
    for line in code.split("\n"):
        bare = line.lstrip()
        indent = line[: len(line) - len(bare)]
        if bare.startswith("!"):
            lines.append(f"{indent}__shell__({bare[1:]!r})")
        elif bare.startswith("%pip "):
            lines.append(f"{indent}__shell__({'python3 -m ' + bare[1:]!r})")
        else:
            lines.append(line)
    return "\n".join(lines)


namespace = {"__name__": "__main__", "__builtins__": __builtins__, "display": display, "__shell__": shell}
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)


def run_part(tree, name, mode):
    compiled = compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if inspect.CO_COROUTINE & compiled.co_flags:
        return loop.run_until_complete(eval(compiled, namespace))
    return eval(compiled, namespace)


def run(code, count):
    name = f"<cell {count}>"
    source = without_magic(code)
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    if tree.body:
        run_part(tree, name, "exec")
    if last is None:
        return
    value = run_part(ast.Expression(last.value), name, "eval")
    if value is not None:
        namespace["_"] = value
        show(value, main=True)


def send_error(error):
    """Sends an exception without the stack frames of the kernel."""
    sys.stdout.flush()
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__]
    while own and own[0].filename.startswith(("/usr/lib/python", "<frozen")):
        own.pop(0)
    lines = ["Traceback (most recent call last):\n"] if own else []
    lines += traceback.format_list(own) + traceback.format_exception_only(type(error), error)
    send("error", name=type(error).__name__, value=str(error), traceback="".join(lines))


def execute(request, count):
    before = dict(os.environ)
    os.environ.update(request.get("env") or {})
    try:
        run(request["code"], count)
        show_figures()
    except BaseException as error:  # also SystemExit and KeyboardInterrupt: the kernel must survive
        send_error(error)
    finally:
        os.environ.clear()
        os.environ.update(before)


def main():
    sys.stdout, sys.stderr = Output("stdout", 1), Output("stderr", 2)
    os.environ.setdefault("MPLBACKEND", "agg")
    count = 0
    while True:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        line = requests.readline()
        if not line:
            return
        count += 1
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            execute(json.loads(line), count)
        except KeyboardInterrupt as error:
            send_error(error)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.flush()
        sys.stderr.flush()
        send("number_of_executions", execution_count=count)
        send("end_of_execution")


main()
