"""The site on this machine's own address while runs go on: rebuilt when it is looked at, shown by the browser anew.

Loopback only: nothing of it can be reached from another machine. Names of other hosts are refused as well, so that no
page of the web can read it through a name that it lets point here.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from benchmark.errors import CannotWrite, FsslError

HOST = "127.0.0.1"
DEFAULT_PORT = 8765
EVERY = 20  # seconds between two builds, and after which a page shows itself anew


class Live:
    """Builds again when the last build has become old; one build at a time, others wait for it."""

    def __init__(self, build: Callable[[], Path], every: float = EVERY) -> None:
        self._build, self._every = build, every
        self._lock = threading.Lock()
        self._built = float("-inf")

    def refresh(self) -> None:
        with self._lock:
            if time.monotonic() - self._built >= self._every:
                try:
                    self._build()
                except FsslError as error:
                    print(f"fssl: the site stays as it was: {error}", flush=True)
                self._built = time.monotonic()


class Handler(SimpleHTTPRequestHandler):
    """Files of the site, read-only."""

    def __init__(self, *arguments: object, live: Live, **more: object) -> None:
        self.live = live
        super().__init__(*arguments, **more)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self._refused():
            return
        if self.path.endswith(("/", ".html")):
            self.live.refresh()
        super().do_GET()

    def do_HEAD(self) -> None:
        if not self._refused():
            super().do_HEAD()

    def _refused(self) -> bool:
        name = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if "\0" in unquote(self.path):  # no file's name
            self.send_error(HTTPStatus.NOT_FOUND, "no such page")
            return True
        if name in (HOST, "localhost"):
            return False
        self.send_error(HTTPStatus.FORBIDDEN, "only this machine's own address is served")
        return True

    def list_directory(self, path: object) -> None:
        self.send_error(HTTPStatus.NOT_FOUND, "no such page")

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.path.endswith(("/", ".html")):
            self.send_header("Refresh", str(EVERY))
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """A page that shows itself anew would fill the terminal."""


def server(build: Callable[[], Path], site: Path, port: int) -> ThreadingHTTPServer:
    """Not yet serving. Raises CannotWrite where the port is taken."""
    live = Live(build)
    try:
        return ThreadingHTTPServer((HOST, port), partial(Handler, live=live, directory=str(site)))
    except OSError as error:
        raise CannotWrite(f"--serve: port {port}: {error.strerror}; choose another one, or 0 for any") from None


def serve(build: Callable[[], Path], site: Path, port: int) -> None:
    """Until Ctrl-C, which ends it without an error."""
    with server(build, site, port) as running:
        build()
        print(f"http://{HOST}:{running.server_address[1]}/  (Ctrl-C ends it)", flush=True)
        try:
            running.serve_forever()
        except KeyboardInterrupt:
            print("stopped")
