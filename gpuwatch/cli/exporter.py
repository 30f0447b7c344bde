"""`gpuwatch exporter`: the monitor without a screen, as Prometheus metrics over HTTP or in a file.

A scrape reads the newest snapshot and asks no driver. waitress serves it from two threads, whatever connects: the
server of prometheus_client itself starts a thread for each connection and keeps it.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from gpuwatch.cli.arguments import add_simulate, add_watching
from gpuwatch.cli.output import ExitCode, GpuwatchError, say
from gpuwatch.cli.session import Session, open_session

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

DEFAULT_PORT = 9836
_LIBRARIES = ("prometheus_client", "waitress")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_THREADS = 2
_MOST_CONNECTIONS = 1000
_IDLE_SECONDS = 15
_MOST_HEADER_BYTES = 16 << 10
_TEXTFILE_SECONDS = 5.0
_LABELS = ("user", "script", "sentence")
_EXAMPLES = """\
examples:
  gpuwatch exporter                                   # http://127.0.0.1:9836/metrics
  gpuwatch exporter --listen 0.0.0.0:9836             # for a Prometheus on another machine
  gpuwatch exporter --textfile /var/lib/node_exporter/textfile/gpuwatch.prom

docs/fleet/ has a scrape config and a systemd unit.
exit codes: 0 ended by SIGTERM, 2 could not listen or write, 130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `gpuwatch exporter`."""
    parser.description = (
        "Serves what the dashboard shows as Prometheus metrics: GPUs, host, runs, ranks, findings, and gpuwatch's own\n"
        "health. Labels hold no user names, scripts or sentences unless --labels asks for them."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--listen", type=_address, metavar="HOST:PORT", help=f"where to listen (default 127.0.0.1:{DEFAULT_PORT})"
    )
    parser.add_argument(
        "--textfile",
        metavar="PATH",
        help="write a .prom file for node_exporter's textfile collector every 5 s; listens only if --listen is given",
    )
    parser.add_argument(
        "--labels", type=_labels, default=frozenset(), metavar="WHAT,...", help="add user, script or sentence to labels"
    )
    add_watching(parser)
    add_simulate(parser)


def exporter(arguments: argparse.Namespace) -> int:
    """Runs until a signal ends it."""
    if not all(map(find_spec, _LIBRARIES)):
        raise GpuwatchError(f"this needs {' and '.join(_LIBRARIES)}: pip install 'gpuwatch[exporter]'")
    textfile = None if arguments.textfile is None else _checked_textfile(Path(arguments.textfile))
    address = arguments.listen or (None if textfile is not None else ("127.0.0.1", DEFAULT_PORT))
    with open_session(arguments) as session:
        metrics = Exposition(session, arguments.labels)
        if address is not None:
            _serve(metrics, address)
            _say_where(address, arguments.labels)
        on_tick = None if textfile is None else TextFile(textfile, metrics).take
        try:
            return _until_stopped(session, on_tick)
        finally:
            if textfile is not None:
                textfile.unlink(missing_ok=True)  # its figures would stay those of the last second for good


class Exposition:
    """The metrics of a session's newest snapshot; from any thread."""

    def __init__(self, session: Session, labels: frozenset[Any]) -> None:
        from gpuwatch.export.prometheus import Sentences

        self._session = session
        self._labels = labels
        self._sentences = Sentences()
        session.monitor.subscribe(self._sentences.take)

    def collect(self) -> Iterable[Metric]:
        """As prometheus_client asks a registry."""
        from gpuwatch.export.prometheus import families

        monitor = self._session.monitor
        return families(
            monitor.snapshot(),
            now_ns=self._session.now_ns(),
            sources=monitor.sources(),
            labels=self._labels,
            sentences=self._sentences,
        )

    def text(self, accept: str) -> tuple[bytes, str]:
        """The body and its type, in the newest format that the client takes."""
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        return encode(self), content_type

    def answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        """The WSGI application."""
        path, method = environ.get("PATH_INFO", ""), environ.get("REQUEST_METHOD")
        status, content_type, body = "200 OK", "text/plain; charset=utf-8", b""
        if method not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", b"only GET is answered here\n"
        elif path == "/metrics":
            body, content_type = self.text(environ.get("HTTP_ACCEPT", ""))
        elif path == "/":
            body = b"gpuwatch exporter: the metrics are at /metrics\n"
        else:
            status, body = "404 Not Found", b"the metrics are at /metrics\n"
        start_response(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [] if method == "HEAD" else [body]


class TextFile:
    """Writes the metrics into a file again and again, whole or not at all."""

    def __init__(self, path: Path, metrics: Exposition) -> None:
        self._path = path
        self._metrics = metrics
        self._due = 0.0

    def take(self, _snapshot: object) -> None:
        """Takes a snapshot.

        Raises:
            GpuwatchError: the file cannot be written.
        """
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _TEXTFILE_SECONDS
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")  # node_exporter reads *.prom
        try:
            temporary.write_bytes(self._metrics.text("")[0])
            temporary.chmod(0o644)
            temporary.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise GpuwatchError(
                f"{self._path} cannot be written ({error.strerror}): give another --textfile"
            ) from error


def _until_stopped(session: Session, on_tick: Callable[[Any], None] | None) -> int:
    """Watches in this thread; SIGTERM, which is how a service is ended, is no failure."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        session.monitor.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        session.monitor.run_until(None, on_tick=on_tick, stop=session.has_ended)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return ExitCode.INTERRUPTED if signal.SIGINT in received else ExitCode.OK


def _serve(metrics: Exposition, address: tuple[str, int]) -> None:
    """Listens, in a thread that ends with the process."""
    from waitress.server import create_server

    host, port = address
    try:
        server = create_server(
            metrics.answer,
            host=host,
            port=port,
            threads=_THREADS,
            connection_limit=_MOST_CONNECTIONS,
            channel_timeout=_IDLE_SECONDS,
            cleanup_interval=5,
            max_request_header_size=_MOST_HEADER_BYTES,
            max_request_body_size=1024,
            asyncore_use_poll=True,  # select() takes no more than 1024 files
            ident=None,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise GpuwatchError(f"cannot listen on {host}:{port} ({reason}): give another --listen HOST:PORT") from error
    threading.Thread(target=server.run, name="gpuwatch-http", daemon=True).start()


def _say_where(address: tuple[str, int], labels: frozenset[str]) -> None:
    host, port = address
    name = f"[{host}]" if ":" in host else host
    say(f"gpuwatch: metrics at http://{name}:{port}/metrics; Ctrl-C ends it")
    if host not in _LOOPBACK:
        more = f", with {' and '.join(f'the {each}' for each in sorted(labels))} of each" if labels else ""
        say(f"gpuwatch: whoever reaches port {port} sees the GPUs, runs and findings of this machine{more}")


def _checked_textfile(path: Path) -> Path:
    if path.suffix != ".prom":
        raise GpuwatchError(f"node_exporter reads only files that end with .prom: give --textfile {path}.prom")
    return path


def _address(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:]*)):(\d{1,5})|(\d{1,5})", text)
    port = int(found[3] or found[4]) if found is not None else 0
    if found is None or not 0 < port < 1 << 16:
        raise argparse.ArgumentTypeError(f"an address is HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}, not {text!r}")
    return found[1] or found[2] or ("127.0.0.1" if found[4] else "0.0.0.0"), port


def _labels(text: str) -> frozenset[str]:
    words = frozenset(word.strip() for word in text.split(","))
    if not words <= set(_LABELS):
        raise argparse.ArgumentTypeError(f"labels may hold {', '.join(_LABELS)}, not {text!r}")
    return words
