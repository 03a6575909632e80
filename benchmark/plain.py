"""Read the JSON, YAML and TOML files that users write, and expand `~` in paths.

A key that appears twice is refused in all three formats, because most readers would silently keep only the last one. A
byte-order mark is ignored. YAML is read safely: no tag builds a Python object.
"""

import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from benchmark.errors import ConfigError, one_line

MERGE = "tag:yaml.org,2002:merge"


def expanded(path: str | Path) -> Path:
    """Return the path with the home folder instead of `~`. Raise ConfigError if the user has no home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{path} cannot be expanded, because this user has no home folder; type it without ~"
        ) from None


def read_table(path: Path) -> dict[str, Any]:
    """Read the fields of a .json, .toml or YAML file. Raise ConfigError, which names the file, if this fails."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if path.suffix == ".toml":
            fields = tomllib.loads(text)
        else:
            fields = from_json_text(text) if path.suffix == ".json" else yaml.load(text, _SafeLoader)
        check_once(list(dotted_names(fields)))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid ({one_line(error)})") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} contains {type(fields).__name__}, but it must contain a table of fields")
    return fields


def from_json_text(text: str | bytes) -> Any:
    """Parse a JSON text. Raise GivenTwice for a repeated key, and ValueError or RecursionError for malformed text."""
    return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        check_once([name for name, _ in pairs])
    return values


class GivenTwice(ValueError):
    """A key appears twice."""


def check_once(names: Sequence[str]) -> None:
    """Raise GivenTwice for the first name that appears twice."""
    for index, name in enumerate(names):
        if name in names[:index]:
            raise GivenTwice(f"{name} is given twice; give it once")


DEEPEST = 4  # largest number of dots in a field's name; a YAML table can contain itself


def dotted_names(fields: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted names of all values; `federation: {K: 5}` and `federation.K: 5` have the same name."""
    if not isinstance(fields, dict) or path.count(".") > DEEPEST:
        yield path
        return
    for key, value in fields.items():
        yield from dotted_names(value, f"{path}.{key}".lstrip("."))


class _SafeLoader(yaml.SafeLoader):
    """A safe YAML loader that refuses repeated keys and ambiguous numbers: YAML 1.1 reads 010 as 8 and 1:30 as 90."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        check_once([f"{key.value}" for key, _ in node.value if key.tag != MERGE])
        return node

    def construct_number(self, node: Any) -> Any:
        text = str(node.value)
        digits = text.lstrip("+-").replace("_", "")
        if ":" in text or (len(digits) > 1 and digits[0] == "0" and digits.isdecimal()):
            raise ValueError(
                f"line {node.start_mark.line + 1}: {text} is not a plain number; write it without : and leading zeros"
            )
        is_int = node.tag == "tag:yaml.org,2002:int"
        return self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)


for _kind in ("int", "float"):
    _SafeLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _SafeLoader.construct_number)
