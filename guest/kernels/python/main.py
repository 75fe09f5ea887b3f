"""The Python kernel of the code interpreter: one JSON request per line on standard input, JSON lines with a marker on
standard output, and a marker on standard error where an answer ends.

It runs inside the sandbox; the host puts the other files of this directory before it, as `PARTS`. With IPython the code has all that notebooks have (magics, `!command`, rich output); without
it the standard library is enough. What child processes and C code print directly reaches the host without a marker and
counts as output.
"""
import asyncio
import io
import json
import os
import signal
import sys
import threading
import time
import types

sys.path.pop(0)
MARK = "\x1e" + os.environ.pop("RINGFENCE_KERNEL", "") + " "
requests = os.dup(0)
answers = os.dup(1)
errors = os.dup(2)
# The code must not read our requests from standard input.
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def load_formats():
    module = sys.modules["ringfence_kernel_formats"] = types.ModuleType("ringfence_kernel_formats")
    exec(compile(PARTS["formats"], "<ringfence formats>", "exec"), module.__dict__)
    module.PARTS, module.HERE = PARTS, os.path.dirname(os.path.abspath(__file__))
    return module


formats = load_formats()
sending = threading.RLock()


def send(kind, **fields):
    line = memoryview(f"{MARK}{formats.encoded({'type': kind, **fields})}\n".encode("utf-8", "backslashreplace"))
    with sending:
        while line:
            line = line[os.write(answers, line) :]


def finish(kind):
    """Sends a message that ends something; the marker on standard error tells that nothing more comes there."""
    os.write(errors, f"{MARK}\n".encode())
    send(kind)


# How many characters of output one message carries at most.
PIECE = 1 << 20


class Output(io.TextIOBase):
    """Standard output or error of the code, sent as messages."""

    def __init__(self, kind, fd):
        self.kind = kind
        self.fd = fd
        self.waiting = ""

    @property
    def encoding(self):
        return "utf-8"

    @property
    def buffer(self):
        return Bytes(self)

    def writable(self):
        return True

    def fileno(self):
        return self.fd

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not " + type(text).__name__)
        with sending:
            self.waiting += text
            if "\n" in text or len(self.waiting) > 8192:
                self.flush()
        return len(text)

    def flush(self):
        with sending:
            text, self.waiting = self.waiting, ""
            for start in range(0, len(text), PIECE):
                send(self.kind, text=text[start : start + PIECE], timestamp=time.time_ns() // 1000)


class Bytes(io.RawIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, output):
        self.output = output

    def writable(self):
        return True

    def write(self, data):
        self.output.write(bytes(data).decode("utf-8", "replace"))
        return len(data)

    def flush(self):
        self.output.flush()


class Answer:
    """What the shells say about one execution."""

    def __init__(self):
        self.failed = False

    def result(self, bundle, main):
        sys.stdout.flush()
        sys.stderr.flush()
        send("result", is_main_result=main, **formats.fields_of(bundle))

    def error(self, name, value, traceback):
        """Sends the first error; one that was raised while it was shown would hide it."""
        if self.failed:
            return
        self.failed = True
        sys.stdout.flush()
        sys.stderr.flush()
        send("error", name=name, value=value, traceback=traceback)


class Requests:
    """Lines from the host. While we wait for one, tasks that the code has started go on."""

    def __init__(self, loop):
        self.loop = loop
        self.rest = bytearray()

    def next(self):
        return self.loop.run_until_complete(self.line())

    async def line(self):
        while True:
            end = self.rest.find(b"\n")
            if end >= 0:
                line = bytes(self.rest[:end])
                del self.rest[: end + 1]
                return line
            await self.readable()
            chunk = os.read(requests, 1 << 20)
            if not chunk:
                return None
            self.rest += chunk

    async def readable(self):
        ready = self.loop.create_future()
        self.loop.add_reader(requests, lambda: ready.done() or ready.set_result(None))
        try:
            await ready
        finally:
            self.loop.remove_reader(requests)


HEALTH_PORT = 49999
HEALTHY = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\nconnection: close\r\n\r\n"OK"'


def serve_health():
    """Answers on E2B's port, where programs and templates wait for the code interpreter. PERFORMANCE: a process of its own,
    forked while this one is small, because a thread would make the code's own forks unsafe."""
    import socket

    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", HEALTH_PORT))
        server.listen()
        child = os.fork()
    except OSError:  # Another kernel answers already.
        child = -1
    if child != 0:
        return server.close()
    os.setsid()
    os.closerange(0, server.fileno())
    os.closerange(server.fileno() + 1, 256)
    while True:
        try:
            connection = server.accept()[0]
            connection.settimeout(1)
            connection.recv(4096)
            connection.sendall(HEALTHY)
            connection.close()
        except OSError:
            pass


def make_shell(answer, loop):
    """The shell that runs the code: IPython where the sandbox has one that works with this kernel."""
    try:
        return formats.part("ipython_shell").make(answer, loop)
    except Exception:
        return formats.part("plain_shell").make(answer, loop)


def execute(shell, answer, request):
    """Runs one piece of code with variables that are set for it alone."""
    answer.failed = False
    variables = request.get("env") or {}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        shell.run(request["code"])
    except BaseException as error:  # also SystemExit and KeyboardInterrupt: the kernel must survive
        answer.error(type(error).__name__, str(error), "")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve_health()
    sys.stdout, sys.stderr = Output("stdout", 1), Output("stderr", 2)
    sys.argv = [""]
    sys.path.insert(0, "")
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    answer = Answer()
    shell = make_shell(answer, loop)
    lines = Requests(loop)
    finish("ready")
    while (line := lines.next()) is not None:
        execute(shell, answer, json.loads(line))
        sys.stdout.flush()
        sys.stderr.flush()
        send("number_of_executions", execution_count=shell.count)
        finish("end_of_execution")


main()
