"""The methods by name (catalogue.toml), and a user's own as `my_module:MyMethod`."""

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from benchmark.config import from_plain, imported, nearest, quoted, to_plain
from benchmark.errors import ConfigError

_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
METHODS: Mapping[str, type[Any]] = {
    name: imported(f"benchmark.methods.{place}", "method.kind") for name, place in _FILE["methods"].items()
}
SETTINGS: Mapping[str, str] = _FILE["settings"]
WRITE = {"needs": 'needs = frozenset({"server"})', "round": "def round(self, state, world)"}  # else the name alone


def method_class(name: str) -> type:
    """The class of that name. Raises ConfigError that names the nearest right one, or what is wrong with a module."""
    if name in METHODS:
        return METHODS[name]
    if ":" not in name:
        hint = f"type --method {SETTINGS[name]}" if name in SETTINGS else nearest(name, METHODS)
        raise ConfigError(f"method.kind: {quoted(name)} is not a method; {hint}, or module:Class for your own")
    cls = imported(name, "method.kind")
    if not isinstance(cls, type) or not is_dataclass(cls):
        raise ConfigError(
            f"method.kind: {name!r} is not a dataclass; write @dataclass(frozen=True, kw_only=True) above it"
        )
    missing = [part for part in ("init", "round", "models", "check", "needs") if not hasattr(cls, part)]
    if missing:
        write = ", ".join(WRITE.get(part, part) for part in missing)
        raise ConfigError(f"method.kind: {name!r} is not a method; write {write} in the class")
    return cls


def check_known(name: object, what: str = "method") -> None:
    """Raise ConfigError for a record's method or network that is neither the suite's nor imported.

    A custom one is imported where the user named it on the command line; a record's name imports nothing.
    """
    if isinstance(name, str) and ":" in name and name.partition(":")[0] not in sys.modules:
        field = {"method": "method.kind", "network": "model.network"}[what]
        raise ConfigError(
            f"{field}: {quoted(name)} is not a {what} of this suite, and a record's own code is not run; "
            f"if you trust it, type --{what} {quoted(name)[1:-1]}"
        )


def method_name(method: object) -> str:
    """The name that `method_class` finds this method's class under."""
    for name, cls in METHODS.items():
        if type(method) is cls:
            return name
    return f"{type(method).__module__}:{type(method).__qualname__}"


def read_method(raw: Any, path: str) -> Any:
    """A method from plain values: its name, or its table. The table has "kind" and the fields."""
    table = {"kind": raw} if isinstance(raw, str) else raw
    if not isinstance(table, Mapping) or not isinstance(table.get("kind"), str):
        raise ConfigError(
            f"{path}: {quoted(raw)} is not a method; choose {path}.kind from {', '.join(sorted(METHODS))}"
        )
    cls = method_class(table["kind"])
    method: Any = from_plain(cls, {key: value for key, value in table.items() if key != "kind"}, path)
    if ":" in table["kind"]:  # one's own may have fields that its records could not be read with
        from_plain(cls, to_plain(method, path), path)
    return method
