"""Read frozen dataclasses from plain JSON values, and write them as such.

Errors name the key, its value and a valid value to type.

No library does this job. Methods are an open set, and a custom method must be read as strictly as the suite's methods.
Every message must also name the nearest valid key, which typed command-line libraries do not do for tagged unions.

A field that is a union of dataclasses is written with a "kind" key: {"kind": "class_skew", "R": 0.4}.
"""

import dataclasses
import difflib
import functools
import importlib
import math
import re
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union

from benchmark.errors import ConfigError, one_line
from benchmark.plain import GivenTwice, from_json_text

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _cached(function: F) -> F:
    """Apply `functools.cache` to a function of a class. mypy considers classes unhashable."""
    return typing.cast(F, functools.cache(function))


@_cached
def kind_of(cls: type) -> str:
    """Return the name of a dataclass in configurations, for example class_skew for ClassSkew."""
    declared = getattr(cls, "kind", None)
    return declared if isinstance(declared, str) else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


# Names that users may type instead of a symbol of the papers.
SYMBOLS = {
    "clients": "K",
    "num_clients": "K",
    "cohort": "C",
    "cohort_size": "C",
    "steps": "T",
    "local_steps": "T",
    "local_epochs": "epochs",
    "labels": "N_s",
    "num_labels": "N_s",
    "learning_rate": "lr",
}

FORMS = "write a finite number, bool, str, Literal, tuple[int, ...] or a frozen dataclass"
LONGEST = 200  # largest number of characters of a value in a message
_brief = reprlib.Repr()
_brief.maxlevel, _brief.maxstring, _brief.maxlong, _brief.maxother = 3, LONGEST, LONGEST, LONGEST


def quoted(value: object) -> str:
    """Return a value for a message, cut at `LONGEST` characters.

    Without the limit, nested YAML aliases could expand to gigabytes.
    """
    text = _brief.repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def nearest(word: object, known: Iterable[str]) -> str:
    """Return a hint for an unknown word: the nearest known name, or all names if they are few or none is near."""
    names, word = list(known), word if isinstance(word, str) else quoted(word)
    if SYMBOLS.get(word) in names:
        return f"did you mean {SYMBOLS[word]!r}?"
    close = difflib.get_close_matches(word[:LONGEST], names, n=1, cutoff=0.5)
    if close and (len(names) > 4 or len(names) == 1):
        return f"did you mean {close[0]!r}?"
    return choose(names)


def full_name(word: str, cls: Any, start: str = "") -> str:
    """Return a hint for an unknown name: the other fields of `cls` with the same last part in their dotted names.

    Return an empty string if there is no such field.
    """
    last = word.rpartition(".")[2]
    end = f".{SYMBOLS.get(last, last)}"
    names = dict.fromkeys(name for name in field_names(cls) if name.endswith(end) and name != word)
    found = " or ".join(f"'{start}{name}'" for name in names)
    return f"did you mean {found}?" if found else ""


def field_names(cls: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted names of a dataclass's fields and of all nested fields, for every kind that a field may have."""
    for f in dataclasses.fields(cls):
        hint, name = _hints(cls)[f.name], _join(path, f.name)
        for kind in (*_kinds(hint), *f.metadata.get("kinds", ())):
            yield from field_names(kind, name)
        yield name


def _kinds(hint: Any) -> list[Any]:
    """Return the dataclasses that are values of a field with this type."""
    return [kind for kind in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(kind)]


def _of_other_kind(name: str, field: str, hint: Any) -> str:
    """Return a hint for an unknown name such as "partition.alpha" that is a field of other kinds of `partition`.

    `hint` is the type of the field "partition". Return an empty string if no kind has it.
    """
    start, _, last = name.rpartition(".")
    if start != field:
        return ""
    kinds = [kind_of(kind) for kind in _kinds(hint) if last in _hints(kind)]
    return f"{start}.kind {' or '.join(kinds)} has it; type --{start}.kind={kinds[0]}" if kinds else ""


def imported(name: str, field: str) -> Any:
    """Import and return the object `module:Name`. Raise ConfigError, which begins with the field's name, on failure."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        hint = _hidden(module)
        raise ConfigError(f"{field}: {quoted(name)} cannot be imported ({one_line(error)}{hint})") from error


def _hidden(module: str) -> str:
    """Return a hint if a different module, such as Python's own `test`, was imported instead of the user's file.

    Return an empty string if this is not the case.
    """
    first = module.partition(".")[0]
    own, found = Path(f"{first}.py"), sys.modules.get(first)
    if found is None or not own.is_file():
        return ""
    place = getattr(found, "__file__", None)
    if place is not None and Path(place).resolve() == own.resolve():
        return ""
    where = "is built into Python" if place is None else f"is {place}"
    return f"; the module {first} that was found {where}, so rename your {own}"


def choose(names: Iterable[str]) -> str:
    """Return the sentence "choose a, b or c"."""
    *others, last = names
    return f"choose {', '.join(others)} or {last}" if others else f"choose {last}"


def added(default: Any, *, before: Any = dataclasses.MISSING, former: Mapping[str, str] | None = None) -> Any:
    """Return a dataclass field that was added after the first records were written.

    `before` is the value that reproduces the behaviour without the field; it defaults to the field's default. If the
    field has this value, it is left out of an experiment's hash, so that older records keep their cell.

    `former` maps the name of a value to its former name; a field that was only renamed also has it in its metadata.
    Both names can be read, and the hash uses the former one. Claim hashes also depend on these keys.
    """
    names = {} if former is None else {"former": former}
    without = default if before is dataclasses.MISSING else before
    return dataclasses.field(default=default, metadata={"before": without, **names})


def values_before(cls: type) -> dict[str, Any]:
    """Return the values that the fields declared with `added` have in older records."""
    return {f.name: f.metadata["before"] for f in dataclasses.fields(typing.cast(Any, cls)) if "before" in f.metadata}


@dataclasses.dataclass(frozen=True)
class Interval:
    """An interval of the numbers that a field may have, such as "[0, 1)"."""

    text: str

    def holds(self, value: float) -> bool:
        low, high = map(float, self.text[1:-1].split(","))
        above = low <= value if self.text[0] == "[" else low < value
        return above and (value <= high if self.text[-1] == "]" else value < high)

    def __str__(self) -> str:
        if not self.text.endswith(("inf)", f"{LARGEST:g}]")):
            return f"a number in {self.text}"
        return f"{self.text[1:].split(',')[0]} or more" if self.text[0] == "[" else "a positive number"


LARGEST = 1e30  # largest value of a field that is used with tensors: the results of a step fit into float32
# Types of fields, which `Checked` checks. None is accepted if a field may be None.
Count = Annotated[int, Interval("[1, inf)")]
Whole = Annotated[int, Interval("[0, inf)")]
NotNegative = Annotated[float, Interval(f"[0, {LARGEST:g}]")]
Positive = Annotated[float, Interval(f"(0, {LARGEST:g}]")]
PositiveOfAnySize = Annotated[float, Interval("(0, inf)")]
Share = Annotated[float, Interval("[0, 1]")]
ShareAbove0 = Annotated[float, Interval("(0, 1]")]
ShareBelow1 = Annotated[float, Interval("[0, 1)")]
ShareBetween = Annotated[float, Interval("(0, 1)")]


class UnknownKey(ConfigError):
    """A key that is not a field of its table. `name` is its dotted name; `hint` suggests a field of the table."""

    def __init__(self, name: str, value: Any, hint: str) -> None:
        self.name, self.hint, self.what = name, hint, f"unknown key {name} = {quoted(value)}"
        super().__init__(f"{self.what}; {hint}")


class Checked:
    """A dataclass that checks its values when it is created, and raises ConfigError for a wrong one.

    It checks ranges, which are part of the fields' types, and refuses a value for a field that is not used. Each number
    then has one canonical form: a float if the field is a float, and 0.0 instead of -0.0. Conditions on several fields
    are checked in a `__post_init__` that calls this one first.
    """

    # Field -> the field that decides whether it is used, and the values of that field that use it. At all other values
    # the field must have its default, because a setting without effect must not create a different cell.
    read_with: ClassVar[Mapping[str, tuple[str, tuple[Any, ...]]]] = {}

    def __post_init__(self) -> None:
        for name, interval in _intervals(type(self)).items():
            value = getattr(self, name)
            if value is not None and not interval.holds(value):
                raise ConfigError(f"{name} is {value}, but it must be {interval}")
        for name, (switch, values) in self.read_with.items():
            value, position = getattr(self, name), getattr(self, switch)
            if position not in values and value != getattr(type(self), name):
                remedy = " or ".join(map(repr, values))
                raise ConfigError(
                    f"{name} is {quoted(value)}, but it has no effect if {switch} is {position!r}; "
                    f"choose {switch} {remedy}"
                )
        for name, hint in _fields_of_floats(type(self)).items():
            object.__setattr__(self, name, _canonical(hint, getattr(self, name)))


@_cached
def _hints(cls: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, without their intervals."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(typing.cast(Any, cls))}


@_cached
def _fields_of_floats(cls: type) -> dict[str, Any]:
    """Return the types of all fields that contain a float or a tuple of floats."""

    def has_float(hint: Any) -> bool:
        return hint is float or any(map(has_float, typing.get_args(hint)))

    return {name: hint for name, hint in _hints(cls).items() if has_float(hint)}


def _canonical(hint: Any, value: Any) -> Any:
    """Return the number in canonical form: a float if the field has floats, and 0.0 instead of -0.0.

    Equal settings must have equal cell keys.
    """
    args = typing.get_args(hint)
    if isinstance(value, tuple) and args:
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return tuple(_canonical(kind, part) for kind, part in zip(kinds, value, strict=True))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) + 0.0 if is_number and float in (hint, *args) else value


@_cached
def _intervals(cls: Any) -> dict[str, Interval]:
    return {
        name: rule
        for name, hint in typing.get_type_hints(cls, include_extras=True).items()
        for part in (hint, *typing.get_args(hint))  # the type itself, or a part of `Share | None`
        for rule in getattr(part, "__metadata__", ())
    }


def to_plain(value: Any, path: str = "", *, hashed: bool = False) -> Any:
    """Convert the dataclass or value to JSON values.

    If `hashed`, leave out the fields declared with `added` that have their value from before, and write values by their
    former names. Raise ConfigError for a value that has no exact JSON form.
    """
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain: dict[str, Any] = {"kind": kind_of(type(value))}
        for f in dataclasses.fields(value):
            now = getattr(value, f.name)
            if hashed and "before" in f.metadata and now == f.metadata["before"]:
                continue
            if hashed and "former" in f.metadata:
                now = f.metadata["former"].get(now, now)
            plain[f.name] = to_plain(now, _join(path, f.name), hashed=hashed)
        return plain
    if isinstance(value, tuple | list):
        return [to_plain(part, path, hashed=hashed) for part in value]
    if isinstance(value, Mapping):
        return {str(key): to_plain(part, _join(path, str(key)), hashed=hashed) for key, part in value.items()}
    constant = "a constant of the class, such as needs, is written without a type"
    raise ConfigError(f"{path}: {quoted(value)} has no exact JSON form; {FORMS}; {constant}")


def from_plain(cls: type[T], data: Any, path: str = "") -> T:
    """Build the dataclass `cls` from JSON values.

    Raise ConfigError, which names the key, the value and a remedy, for values that do not fit.
    """
    hints = _hints(cls)
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"{path or 'experiment'}: {quoted(data)} is not a table of fields; {cls.__name__} has {', '.join(hints)}"
        )
    fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, cls))}
    values = {}
    for key, raw in data.items():
        if key == "kind":
            if raw != kind_of(cls):
                field = _join(path, next(iter(fields)))
                raise ConfigError(
                    f"{path or 'kind'}: {quoted(raw)} is not a known kind; set single fields, such as {field}"
                )
            continue
        if key not in fields:
            hint = full_name(str(key), cls) or nearest(key, fields)
            raise UnknownKey(_join(path, key), raw, hint)
        names = {former: now for now, former in fields[key].metadata.get("former", {}).items()}
        raw = names.get(raw, raw) if isinstance(raw, str) else raw
        if isinstance(raw, Mapping) and "kind" not in raw and dataclasses.is_dataclass(fields[key].default):
            raw = {**to_plain(fields[key].default), **raw}
        reader = fields[key].metadata.get("read")  # open sets, such as methods, have their own reader
        try:
            values[key] = reader(raw, _join(path, key)) if reader else read_as(hints[key], raw, _join(path, key))
        except UnknownKey as error:
            hint = ""
            if not path and error.hint.startswith("choose "):  # no name in the same table is near
                hint = _of_other_kind(error.name, key, hints[key]) or full_name(error.name, cls)
            raise ConfigError(f"{error.what}; {hint}") if hint else error from None
    missing = [
        name
        for name, f in fields.items()
        if name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{_join(path, missing[0])} is missing; {cls.__name__} needs {', '.join(missing)}")
    try:
        return cls(**values)
    except ConfigError as error:  # the dataclass checks its ranges, but does not know its path
        message = str(error)
        raise type(error)(message if not path or message.startswith(path) else f"{path}.{message}") from None


def read_as(hint: Any, raw: Any, path: str) -> Any:
    """Convert the JSON value to the type `hint`. Raise ConfigError, which begins with the path, for a wrong value."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return raw
    if origin is Literal:
        if raw not in args:
            raise ConfigError(f"{path}: unknown value {quoted(raw)}; {nearest(raw, map(str, args))}")
        return raw
    if origin in (Union, types.UnionType):
        return _read_union(args, raw, path)
    if origin is tuple:
        return _read_tuple(args, raw, path)
    if origin is Mapping:
        if not isinstance(raw, Mapping):
            raise ConfigError(f"{path}: {quoted(raw)} is not a table; write {{ NAME = VALUE }}")
        return {str(key): read_as(args[1], value, _join(path, str(key))) for key, value in raw.items()}
    if dataclasses.is_dataclass(hint):
        return raw if isinstance(raw, typing.cast(type, hint)) else from_plain(typing.cast(type, hint), raw, path)
    reader = {bool: _bool, int: _int, float: _float, str: _str, datetime: _time}.get(hint)
    if reader is None:
        raise ConfigError(f"{path}: configurations cannot contain {hint!r}; {FORMS}")
    return reader(raw, path)


def _read_union(args: tuple[Any, ...], raw: Any, path: str) -> Any:
    options = [arg for arg in args if arg is not type(None)]
    if type(None) in args and raw in (None, "null", "None"):
        return None
    if len(options) == 1:
        return read_as(options[0], raw, path)
    if any(isinstance(option, type) and isinstance(raw, option) for option in options):
        return raw
    kinds = {kind_of(option): option for option in options}
    kind: Any = None
    if isinstance(raw, str):
        kind = raw
    elif isinstance(raw, Mapping):
        kind = raw.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(f"{path}.kind: unknown value {quoted(kind)}; {nearest(str(kind), kinds)}")
    return from_plain(kinds[kind], {} if isinstance(raw, str) else raw, path)


def _read_tuple(args: tuple[Any, ...], raw: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(raw, list | tuple):
        raise ConfigError(f"{path}: {quoted(raw)} is not a list")
    if args[-1] is Ellipsis:
        return tuple(read_as(args[0], part, f"{path}[{i}]") for i, part in enumerate(raw))
    if len(raw) != len(args):
        raise ConfigError(f"{path}: {quoted(raw)} has {len(raw)} entries, but it must have {len(args)}")
    return tuple(read_as(arg, part, f"{path}[{i}]") for i, (arg, part) in enumerate(zip(args, raw, strict=True)))


def _bool(raw: Any, path: str) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in ("true", "false"):
        return raw.lower() == "true"
    raise ConfigError(f"{path}: {quoted(raw)} is neither true nor false")


def _int(raw: Any, path: str) -> int:
    if isinstance(raw, str):
        raw = scalar(raw)
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw  # a float cannot represent 2**53 + 1
    number = _float(raw, path)
    if number != int(number):
        raise ConfigError(f"{path}: {quoted(raw)} is not a whole number")
    return int(number)


def _float(raw: Any, path: str) -> float:
    try:
        if isinstance(raw, bool):
            raise ValueError
        number = float(raw)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{path}: {quoted(raw)} is not a number") from None
    if not math.isfinite(number):
        raise ConfigError(f"{path}: {quoted(raw)} is not finite")
    return number


def _str(raw: Any, path: str) -> str:
    if not isinstance(raw, str):
        raise ConfigError(f"{path}: {quoted(raw)} is not a text")
    return raw


def _time(raw: Any, path: str) -> datetime:
    if not isinstance(raw, datetime) or raw.tzinfo is None:
        raise ConfigError(f"{path}: {quoted(raw)} is not a time in UTC; write 2026-11-25T14:05:00Z")
    return raw


def merge(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Set nested fields of `data` in place; dotted keys name nested fields.

    A different kind drops the fields of the old kind. Raise ConfigError for a key that is not a string.
    """
    for key, value in changes.items():
        if not isinstance(key, str):  # YAML keys may be numbers
            raise ConfigError(f"key {key!r} is not the name of a field")
        if "." in key:
            key, _, tail = key.partition(".")
            value = {tail: value}
        old = data.get(key)
        if isinstance(value, str) and isinstance(old, dict):
            value = {"kind": value}
        elif isinstance(value, dict) and isinstance(old, str):
            value = {"kind": old, **value}
        if isinstance(value, dict) and isinstance(old, dict) and value.get("kind", old.get("kind")) == old.get("kind"):
            merge(old, value)
        else:
            data[key] = value


def scalar(text: str) -> Any:
    """Return the value of a command-line word: a JSON value, Python's None, True or False, or the text itself.

    Raise ConfigError for a key that appears twice.
    """
    if text in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[text]
    try:
        return from_json_text(text)
    except GivenTwice as error:
        raise ConfigError(f"{text}: {error}") from None
    except (ValueError, RecursionError):  # a number of thousands of digits raises a plain ValueError
        return text


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else str(key)
