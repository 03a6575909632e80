"""The methods of the suite by name (registry.toml), and custom methods as `my_module:MyMethod`."""

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
WRITE = {"needs": 'needs = frozenset({"server"})', "round": "def round(self, state, world)"}  # others by name


def method_class(name: str) -> type:
    """Return the class of the method with this name.

    Raise ConfigError if there is no such method, with the most similar name, or with the fault of a custom class.
    """
    if name in METHODS:
        return METHODS[name]
    if ":" not in name:
        hint = f"type --method {SETTINGS[name]}" if name in SETTINGS else nearest(name, METHODS)
        raise ConfigError(f"method.kind: {quoted(name)} is not a method; {hint}, or module:Class for a custom method")
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
    """Raise ConfigError if a run record's method or network is custom and its module is not imported.

    A custom class is imported if the user named it on the command line. A name in a run record imports nothing.
    """
    if isinstance(name, str) and ":" in name and name.partition(":")[0] not in sys.modules:
        field = {"method": "method.kind", "network": "model.network"}[what]
        raise ConfigError(
            f"{field}: {quoted(name)} is not a {what} of this suite, and custom code that a run record names is not "
            f"run; if you trust it, type --{what} {quoted(name)[1:-1]}"
        )


def method_name(method: object) -> str:
    """Return the name that `method_class` needs to find the class of this method or local update."""
    for name, cls in METHODS.items():
        if type(method) is cls:
            return name
    return f"{type(method).__module__}:{type(method).__qualname__}"


def read_method(raw: Any, path: str) -> Any:
    """Read a method from plain values: its name, or a table of its "kind" and its fields."""
    table = {"kind": raw} if isinstance(raw, str) else raw
    if not isinstance(table, Mapping) or not isinstance(table.get("kind"), str):
        raise ConfigError(
            f"{path} is {quoted(raw)}, which is not a method; choose {path}.kind from {', '.join(sorted(METHODS))}"
        )
    cls = method_class(table["kind"])
    method: Any = from_plain(cls, {key: value for key, value in table.items() if key != "kind"}, path)
    if ":" in table["kind"]:  # a custom method may have a field that cannot be read back from a run record
        from_plain(cls, to_plain(method, path), path)
    return method
