"""`fssl report --serve`: pages of the site, to this machine alone."""

import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from reports.serve import server


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[HTTPConnection]:
    def build() -> Path:
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "index.html").write_text("<p>built</p>")
        return tmp_path

    with server(build, tmp_path, 0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        connection = HTTPConnection("127.0.0.1", running.server_address[1], timeout=60)
        yield connection
        connection.close()
        running.shutdown()


def test_a_page_is_built_when_it_is_looked_at(connection):
    connection.request("GET", "/")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b"<p>built</p>") and answer.getheader("Refresh") == "20"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("/index.html", "example.org", 403),
        ("/data/", "localhost", 404),
        ("/%00", "localhost", 404),
        ("/a%00.html", "localhost", 404),
        ("/../../etc/passwd", "localhost", 404),
        ("/%2e%2e/%2e%2e/etc/passwd", "localhost", 404),
    ],
)
def test_what_is_no_page_of_the_site_is_refused(connection, capfd, method, path, host, status):
    """And nothing is said on the terminal."""
    connection.request(method, path, headers={"Host": host})
    assert connection.getresponse().status == status
    assert capfd.readouterr() == ("", "")
