"""What people write: JSON, YAML and TOML, each key once, and paths with a `~`.

A key that stands twice is refused in all of them: most readers keep the last one and drop the first. A byte-order mark
is passed over. YAML is read safely: no tag builds an object.
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
    """The path with the home folder in place of `~`. Raises ConfigError for a user who has none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{path}: this user has no home folder; name the folder without ~") from None


def read_table(path: Path) -> dict[str, Any]:
    """The fields of a .json or .toml file, or else of a YAML file. Raises ConfigError that names the file."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if path.suffix == ".toml":
            fields = tomllib.loads(text)
        else:
            fields = from_json_text(text) if path.suffix == ".json" else yaml.load(text, _SafeLoader)
        check_once(list(dotted_names(fields)))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: is not whole ({one_line(error)})") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{path}: holds {type(fields).__name__} in place of a table of fields")
    return fields


def from_json_text(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError (GivenTwice for a key that stands twice) and RecursionError."""
    return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        check_once([name for name, _ in pairs])
    return values


class GivenTwice(ValueError):
    """A key stands twice."""


def check_once(names: Sequence[str]) -> None:
    """Raises GivenTwice for the first name that stands twice."""
    for index, name in enumerate(names):
        if name in names[:index]:
            raise GivenTwice(f"{name} is given twice; give it once")


DEEPEST = 4  # dots in the name of a field; YAML can build tables that hold themselves


def dotted_names(fields: Any, path: str = "") -> Iterator[str]:
    """The names of all values: `federation: {K: 5}` and `federation.K: 5` are one."""
    if not isinstance(fields, dict) or path.count(".") > DEEPEST:
        yield path
        return
    for key, value in fields.items():
        yield from dotted_names(value, f"{path}.{key}".lstrip("."))


class _SafeLoader(yaml.SafeLoader):
    """Keys once, and numbers as people read them: YAML 1.1 takes 010 for 8 and 1:30 for 90."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        check_once([f"{key.value}" for key, _ in node.value if key.tag != MERGE])
        return node

    def construct_number(self, node: Any) -> Any:
        text = str(node.value)
        digits = text.lstrip("+-").replace("_", "")
        if ":" in text or (len(digits) > 1 and digits[0] == "0" and digits.isdecimal()):
            raise ValueError(
                f"line {node.start_mark.line + 1}: {text} is not a plain number; write it without : and 0s"
            )
        is_int = node.tag == "tag:yaml.org,2002:int"
        return self.construct_yaml_int(node) if is_int else self.construct_yaml_float(node)


for _kind in ("int", "float"):
    _SafeLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _SafeLoader.construct_number)
