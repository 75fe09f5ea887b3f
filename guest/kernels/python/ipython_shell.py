"""Code runs in IPython's own shell, so that it means what it means in a notebook."""
import asyncio
import codecs
import importlib.util
import os
import selectors
import subprocess
import sys
import types
import warnings

formats = sys.modules["ringfence_kernel_formats"]


def import_quickly():
    """PERFORMANCE: IPython loads its terminal and jedi, which takes a third of its start; a kernel needs neither."""
    jedi = sys.modules.get("jedi")
    sys.modules["jedi"] = None
    embed = types.ModuleType("IPython.terminal.embed")
    embed.embed = lambda *_, **__: None
    sys.modules["IPython.terminal.embed"] = embed
    try:
        import IPython.core.interactiveshell
    finally:
        for name, before in (("jedi", jedi), ("IPython.terminal.embed", None)):
            del sys.modules[name]
            if before is not None:
                sys.modules[name] = before


import_quickly()
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


class Hook(DisplayHook):
    """Sends the value of the last expression."""

    bundle = None

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        self.bundle = format_dict

    def finish_displayhook(self):
        bundle, self.bundle = self.bundle, None
        if bundle:
            self.shell.answer.result(bundle, True)


class Publisher(DisplayPublisher):
    """Sends what the code displays."""

    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **_):
        # E2B's clients cannot change what they were shown.
        if not update:
            self.shell.answer.result(data, False)

    def clear_output(self, wait=False):
        pass


class Formatter(DisplayFormatter):
    """IPython's formats, and what E2B adds to them."""

    def format(self, obj, include=None, exclude=None):
        data, metadata = super().format(obj, include=include, exclude=exclude)
        if data:
            more = formats.additions(obj)
            is_wanted = lambda mime: (not include or mime in include) and mime not in (exclude or ())
            data = {**{mime: one for mime, one in more.items() if is_wanted(mime)}, **data}
        return data, metadata


class Shell(InteractiveShell):
    """IPython's shell without a terminal."""

    displayhook_class = Hook
    display_pub_class = Publisher

    def init_display_formatter(self):
        self.display_formatter = Formatter(parent=self)
        self.configurables.append(self.display_formatter)

    def enable_gui(self, gui=None):
        pass

    def ask_exit(self):
        raise SystemExit

    def system_piped(self, cmd):
        """Runs `!command` and passes on what it prints as it comes; it may leave programs behind that run on."""
        line = self.var_expand(cmd, depth=1)
        pipe = subprocess.PIPE
        with subprocess.Popen(["/bin/bash", "-c", line], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as child:
            pass_on(child)
            self.user_ns["_exit_code"] = child.returncode

    system = system_piped

    def _showtraceback(self, etype, evalue, stb):
        if self.interrupted and issubclass(etype, asyncio.CancelledError):
            etype, evalue = KeyboardInterrupt, ""
        self.answer.error(etype.__name__, str(evalue), stb if isinstance(stb, str) else "\n".join(stb))

    def await_here(self, coroutine):
        """Runs a cell that awaits; if it is interrupted, it does not go on in the background."""
        self.interrupted = False
        task = self.loop.create_task(coroutine)
        try:
            return self.loop.run_until_complete(task)
        except KeyboardInterrupt:
            self.interrupted = True
            task.cancel()
            self.loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            raise

    def run(self, code):
        self.interrupted = False
        done = self.run_cell(code, store_history=True)
        self.count = self.execution_count - 1
        # Some failures are not shown by the shell itself.
        error = done.error_before_exec or done.error_in_exec
        if error is not None:
            self.answer.error(type(error).__name__, str(error), "")


def pass_on(child):
    """Copies both streams of a child until it has exited."""
    decoders = {child.stdout: (sys.stdout, new_decoder()), child.stderr: (sys.stderr, new_decoder())}
    with selectors.DefaultSelector() as waiting:
        for stream in decoders:
            waiting.register(stream, selectors.EVENT_READ)
        while waiting.get_map():
            has_exited = child.poll() is not None
            ready = waiting.select(0 if has_exited else 0.02)
            for key, _ in ready:
                output, decoder = decoders[key.fileobj]
                data = os.read(key.fd, 1 << 16)
                output.write(decoder.decode(data, not data))
                output.flush()
                if not data:
                    waiting.unregister(key.fileobj)
            # A program in the background may hold the streams open.
            if has_exited and not ready:
                return
    child.wait()


def new_decoder():
    return codecs.getincrementaldecoder("utf-8")("replace")


def make(answer, loop):
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "NoColor"
    config.Completer.use_jedi = False
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    # Programs that ask for a pager or for colours would wait or write escape codes.
    os.environ.setdefault("PAGER", "cat")
    Shell.answer, Shell.loop, Shell.interrupted, Shell.count = answer, loop, False, 0
    warnings.filterwarnings("ignore", message="To exit: use")
    # The files of its profile do not belong in the user's home.
    os.environ["IPYTHONDIR"] = os.path.join(formats.HERE, "ipython")
    shell = Shell.instance(config=config)
    del os.environ["IPYTHONDIR"]
    shell.loop_runner = shell.await_here
    show_pictures()
    return shell


class AfterImport:
    """Changes a module once it was imported."""

    def __init__(self, name, change):
        self.name, self.change = name, change

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                self.change(module)

            spec.loader.exec_module = exec_module
        return spec


def show_pictures():
    """Pictures that the code shows, or saves under a name, are displayed."""
    from IPython.display import display

    def change(module):
        save = module.Image.save

        def save_and_display(image, fp, format=None, **options):
            save(image, fp, format, **options)
            if isinstance(fp, str):
                display(image)

        module.Image.save = save_and_display
        module.Image.show = lambda image, title=None: display(image)

    sys.meta_path.insert(0, AfterImport("PIL.Image", change))
