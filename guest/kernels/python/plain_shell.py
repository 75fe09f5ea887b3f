"""Code runs with the standard library alone, for sandboxes without IPython."""
import ast
import inspect
import io
import linecache
import os
import subprocess
import sys
import textwrap
import traceback

formats = sys.modules["ringfence_kernel_formats"]
METHODS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_pdf_": "application/pdf",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
}


def bundle_of(value):
    """A value in every format that it supports."""
    shown = {"text/plain": repr(value), **formats.additions(value)}
    if inspect.isclass(value):
        return shown
    bundle = getattr(value, "_repr_mimebundle_", None)
    if callable(bundle):
        shown.update(first(bundle()) or {})
    for method, mime in METHODS.items():
        found = getattr(value, method, None)
        if callable(found):
            try:
                data = first(found())
            except Exception:
                continue
            if data is not None:
                shown[mime] = data
    return shown


def first(data):
    """Formats may come with metadata."""
    return data[0] if isinstance(data, tuple) else data


def system(line):
    """Runs `!command`, as in notebooks."""
    done = subprocess.run(["/bin/bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    sys.stdout.write(done.stdout.decode("utf-8", "replace"))
    sys.stderr.write(done.stderr.decode("utf-8", "replace"))


def without_magic(code):
    """Turns lines that begin with `!` into shell calls, unless the code is valid Python as it stands."""
    code = textwrap.dedent(code)
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
        elif bare.startswith("%matplotlib"):
            lines.append(indent + "pass")
        else:
            lines.append(line)
    return "\n".join(lines)


class PlainShell:
    """Runs code, keeps its names, shows the value of its last expression."""

    def __init__(self, answer, loop):
        self.answer, self.loop, self.count = answer, loop, 0
        self.names = {"__name__": "__main__", "__builtins__": __builtins__, "display": self.display, "__shell__": system}

    def display(self, *values):
        """Sends values in every format that they support."""
        for value in values:
            self.answer.result(bundle_of(value), False)

    def run(self, code):
        self.count += 1
        try:
            self.run_cell(code, f"<cell {self.count}>")
            self.show_figures()
        except BaseException as error:  # also SystemExit and KeyboardInterrupt: the kernel must survive
            self.answer.error(type(error).__name__, str(error), trace_of(error))

    def run_cell(self, code, name):
        source = without_magic(code)
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        tree = ast.parse(source, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        if tree.body:
            self.run_part(tree, name, "exec")
        if last is None:
            return
        value = self.run_part(ast.Expression(last.value), name, "eval")
        if value is not None:
            self.names["_"] = value
            self.answer.result(bundle_of(value), True)

    def run_part(self, tree, name, mode):
        compiled = compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if inspect.CO_COROUTINE & compiled.co_flags:
            return self.loop.run_until_complete(eval(compiled, self.names))
        return eval(compiled, self.names)

    def show_figures(self):
        """Sends the matplotlib figures that the code left open."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        for number in pyplot.get_fignums():
            picture = io.BytesIO()
            figure = pyplot.figure(number)
            figure.savefig(picture, format="png")
            self.answer.result({**bundle_of(figure), "image/png": picture.getvalue()}, False)
        pyplot.close("all")


def trace_of(error):
    """The traceback of an exception without the stack frames of the kernel."""
    own = ("<ringfence", formats.HERE)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    while frames and frames[0].filename.startswith(("/usr/lib/python", "<frozen")):
        frames.pop(0)
    lines = ["Traceback (most recent call last):\n"] if frames else []
    return "".join(lines + traceback.format_list(frames) + traceback.format_exception_only(type(error), error))


def make(answer, loop):
    os.environ.setdefault("MPLBACKEND", "agg")
    return PlainShell(answer, loop)
