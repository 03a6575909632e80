"""Write text of strangers so that Markdown, terminals and readers show it as plain text. Needs only Python's standard
library.

`python -I benchmark/sharing/comment.py FILE` prints a report that a process of a stranger may have written, as a block
of code. FILE is the report, or a zip file that contains it under the name `comment.md`. The file is neither unpacked
nor run.
"""

import io
import re
import sys
import zipfile
from pathlib import Path

NAME = "comment.md"
LONGEST = 20_000  # characters of a whole comment; GitHub accepts 65,536
LONGEST_TEXT = 300  # characters of one text in it
CUT = "…"


def plain(text: str) -> str:
    """Return the text on one line, with "?" in place of characters that do not print or that turn the line around."""
    words = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in words)


def code(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return the text as a code span of Markdown. No link, tag, mention or end of the span is possible in it."""
    words = plain(text).replace("`", "'") or "-"
    short = words if len(words) <= longest else words[: longest - 1] + CUT
    return f"`{short}`"


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return the text, cut at the end of a line if it is longer than `longest` characters."""
    if len(text) <= longest:
        return text
    return text[:longest].rpartition("\n")[0] + f"\n\n{CUT} (cut after {longest:,} characters)\n"


def fenced(content: bytes) -> str:
    """Return a report as one block of code, whatever it contains.

    It is cut after `LONGEST` characters. The fence is longer than any row of backticks in it, so that nothing in it can
    end the block.
    """
    text = shortened(content[: 8 * LONGEST].decode(errors="replace"))
    lines = [plain_line(line) for line in text.split("\n")]
    body = "\n".join(lines).strip("\n")
    longest = max((len(row) for row in re.findall("`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{body}\n{fence}\n"


def plain_line(line: str) -> str:
    """Return the line with "?" in place of characters that do not print; its spaces stay."""
    return "".join(letter if letter.isprintable() else "?" for letter in line.rstrip("\r"))


def content_of(path: Path) -> bytes:
    """Read at most `8 * LONGEST` bytes of the report, from a file or from its member of a zip file.

    Raise ValueError if the zip file has no such member or is damaged.
    """
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            file.seek(0)
            return file.read(8 * LONGEST)
        file.seek(0)
        content = file.read(100_000_000)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive, archive.open(NAME) as member:
            return member.read(8 * LONGEST)
    except (KeyError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{path} contains no readable {NAME} ({error})") from None


if __name__ == "__main__":
    print(fenced(content_of(Path(sys.argv[1]))), end="")
