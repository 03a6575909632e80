"""Templates to pages: escaped by itself, with the style and the scripts inside, and a policy that forbids the rest."""

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"


@functools.cache
def environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@functools.cache
def _source(name: str) -> str:
    return (TEMPLATES / name).read_text()


@functools.cache
def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(_source(script).encode()).digest()).decode()


def render(page: Path, template: str, values: Mapping[str, Any], scripts: Sequence[str] = ("site.js",)) -> bytes:
    """The page's bytes. `page`: where it stands in the site, relative to its root; `scripts`: files of the templates'
    folder, the only ones that the page's policy lets run."""
    text = (
        environment()
        .get_template(template)
        .render(
            root="../" * (len(page.parts) - 1),
            css=Markup(_source("site.css")),
            dark=Markup(_source("dark.css")),
            theme=Markup(_source("theme.js")),
            scripts=[Markup(_source(name)) for name in scripts],
            script_hashes=[_digest(name) for name in ("theme.js", *scripts)],
            **values,
        )
    )
    return text.encode()


@functools.cache
def version() -> str:
    """A hash of everything but the records that decides what a page looks like: the package's code and templates."""
    found = hashlib.sha256()
    here = TEMPLATES.parent
    for path in sorted([*here.rglob("*.py"), *TEMPLATES.iterdir()]):
        if "site" not in path.relative_to(here).parts[:-1]:
            found.update(f"{path.relative_to(here)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return found.hexdigest()
