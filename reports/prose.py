"""Handwritten pages, in the little Markdown that they use, as HTML: headings, paragraphs, lists, tables, code, bold.

Everything is escaped; a link is shown as its text, since pages lead nowhere outside of the site.
"""

import re
from collections.abc import Iterator, Sequence

from markupsafe import Markup, escape

MARKS = ((r"\*\*([^*]+)\*\*", "b"), (r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])", "i"))
LIST = re.compile(r"\s*(?:[-*]|\d+\.) +")
RULE = re.compile(r"\|?(\s*:?-{3,}:?\s*\|?)+")


def prose(text: str, above: int = 1) -> Markup:
    """`above`: the level of the heading over it; its own begin one below, and its first, the page's title, is left
    out."""
    return Markup("").join(_block(lines, above) for lines in _blocks(text))


def _blocks(text: str) -> Iterator[list[str]]:
    """Runs of lines that belong together; fenced code is one."""
    block: list[str] = []
    fenced = False
    for line in text.splitlines():
        fence = line.startswith("```")
        if fence:
            fenced = not fenced
        alone = line.startswith("#") and not fenced
        if block and ((not line.strip() and not fenced) or alone or (fence and fenced)):
            yield block
            block = []
        if line.strip() or fenced:
            block.append(line)
        if block and (alone or (fence and not fenced)):
            yield block
            block = []
    if block:
        yield block


def _block(lines: Sequence[str], above: int) -> Markup:
    first = lines[0]
    if first.startswith("```"):
        return Markup('<pre tabindex="0"><code>{}</code></pre>').format(
            "\n".join(lines[1:]).removesuffix("```").rstrip()
        )
    if heading := re.match(r"(#+) +(.*)", first):
        level = min(6, above + len(heading[1]) - 1)
        return Markup("") if level == above else Markup(f"<h{level}>{{}}</h{level}>").format(marked(heading[2]))
    if first.startswith("|") and len(lines) > 1 and RULE.fullmatch(lines[1].strip()):
        return _table(lines)
    if LIST.match(first):
        return _list(lines)
    return Markup("<p>{}</p>").format(marked(" ".join(line.strip() for line in lines)))


def _list(lines: Sequence[str]) -> Markup:
    entries: list[str] = []
    for line in lines:
        if (start := LIST.match(line)) is not None:
            entries.append(line[start.end() :].strip())
        else:
            entries[-1] += f" {line.strip()}"
    name = "ol" if lines[0].strip()[0].isdigit() else "ul"
    body = Markup("").join(Markup("<li>{}</li>").format(marked(entry)) for entry in entries)
    return Markup(f'<{name} class="prose">{{}}</{name}>').format(body)


def _table(lines: Sequence[str]) -> Markup:
    head, _, *rows = [[part.strip() for part in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in lines]
    top = Markup("").join(Markup('<th scope="col">{}</th>').format(marked(field)) for field in head)
    body = Markup("").join(
        Markup('<tr><th scope="row" class="first">{}</th>{}</tr>').format(
            marked(first), Markup("").join(Markup("<td>{}</td>").format(marked(field)) for field in rest)
        )
        for first, *rest in rows
    )
    table = Markup('<table class="numbers words"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>').format(top, body)
    return Markup('<div class="scroll" tabindex="0" role="region" aria-label="Table: {}">{}</div>').format(
        head[0], table
    )


def marked(text: str) -> Markup:
    """A line's code, bold and italic parts. Code first: what stands in it is no mark."""
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = []
    for place, part in enumerate(re.split(r"`([^`]+)`", plain)):
        if place % 2:
            parts.append(str(Markup("<code>{}</code>").format(part)))
            continue
        done = str(escape(part.replace("\\|", "|")))
        for pattern, name in MARKS:
            done = re.sub(pattern, rf"<{name}>\1</{name}>", done)
        parts.append(done)
    return Markup("".join(parts))
