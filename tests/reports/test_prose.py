"""Handwritten pages as HTML: the little Markdown they use, and nothing of it that could run or lead away."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from reports.prose import prose
from tests.conftest import ROOT


def test_blocks() -> None:
    text = "# Title\n\nOne\nline, `a*b*` and **bold**.\n## Next\n- x\n  goes on\n- y\n\n1. first\n\n"
    text += "```sh\na <b>\n\nc\n```\n"
    assert str(prose(text)) == (
        "<p>One line, <code>a*b*</code> and <b>bold</b>.</p><h2>Next</h2>"
        '<ul class="prose"><li>x goes on</li><li>y</li></ul><ol class="prose"><li>first</li></ol>'
        '<pre tabindex="0"><code>a &lt;b&gt;\n\nc</code></pre>'
    )


def test_table() -> None:
    found = str(prose("| a | b |\n| --- | ---: |\n| `x` | 1.5 |\n| <i> | |\n"))
    assert '<th scope="col">a</th><th scope="col">b</th>' in found
    assert '<tr><th scope="row" class="first"><code>x</code></th><td>1.5</td></tr>' in found
    assert '<tr><th scope="row" class="first">&lt;i&gt;</th><td></td></tr>' in found


def test_link_is_its_text() -> None:
    assert str(prose("see [the page](javascript:alert(1)) now")) == "<p>see the page) now</p>"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.found.add(tag)
        assert {name for name, _ in attrs} <= {"class", "tabindex", "role", "aria-label", "scope"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


HEADS, LISTS = ("p", "h2", "h3", "h4", "h5", "h6"), ("ul", "ol", "li")
TABLES = ("table", "thead", "tbody", "tr", "th", "td")
KNOWN = {*HEADS, *LISTS, *TABLES, "pre", "code", "b", "i", "div"}


@given(st.text(alphabet="ab*`|#-<>&\"'[]() \n1.\\", max_size=60))
def test_any_text_is_well_formed_and_has_no_other_tag(text: str) -> None:
    read = Tags()
    read.feed(str(prose(text)))
    assert read.open == [] and read.found <= KNOWN


def test_our_own_page_is_an_article() -> None:
    """reports/performance.md: no mark of Markdown is left outside of code."""
    read = Tags()
    html = str(prose((ROOT / "reports" / "performance.md").read_text()))
    read.feed(html)
    assert read.open == [] and "| ---" not in html and "<p>#" not in html and "**" not in html
