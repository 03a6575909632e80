"""`state.pt`: the one file that an unfinished run goes on from.

It is replaced whole, and holds the method's state at the server and at the clients, and the lines of all finished
rounds. Every random stream has a name, so that nothing else is needed to go on bit by bit.

It is torch's own format, written tensor by tensor straight to the file, and read with `weights_only` after a look at
its checksums: a file that was put there by somebody else runs no code, and a damaged one moves no number.
"""

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmark.errors import ConfigError, DataError
from benchmark.federated.trees import mapped
from benchmark.files import replacing
from benchmark.methods.protocol import State

NAME = "state.pt"
FORMAT = 3  # raised when the content changes its meaning; 1 and 2 were the files under `checkpoints`


@dataclass(frozen=True, kw_only=True)
class RunState:
    """After the last finished round."""

    state: State
    lines: tuple[str, ...]  # of rounds.jsonl, each with its end of line
    measured: Mapping[str, int]  # `record.measurements`: all rounds measure the same
    exchange: Mapping[str, Any]  # `CommunicationSummary.summary` so far

    @property
    def round(self) -> int:
        return len(self.lines)


def save(folder: Path, run_state: RunState, run: str, check: Callable[[], object] = lambda: None) -> None:
    """Replace `state.pt`. `run` names the cell and the seed; `check` is called just before the file takes its place.

    Peak memory is that of the state, but for tensors that are a part of a larger storage, which are copied first.
    Raises CannotWrite, and what `check` does; the file before is then whole.
    """
    check_types(run_state.state)
    content = {
        "format": FORMAT,
        "run": run,
        "server": mapped(run_state.state.server, _without_the_rest),
        "clients": mapped(dict(run_state.state.clients), _without_the_rest),
        "lines": "".join(run_state.lines),
        "measured": run_state.measured,
        "exchange": run_state.exchange,
    }
    with replacing(folder / NAME, check) as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch's own, over that of a full disk
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


PLAIN = (type(None), bool, int, float, complex, str, bytes)


def check_types(state: State) -> None:
    """Raise ConfigError for a value that `load` could not read back: it knows tensors and plain values alone."""
    for name, value in state.server.items():
        _check_type(value, f"State.server[{name!r}]")
    for client, tree in state.clients.items():
        for name, value in tree.items():
            _check_type(value, f"State.clients[{client!r}][{name!r}]")


def _check_type(value: Any, where: str) -> None:
    if type(value) in PLAIN or isinstance(value, Tensor):
        return
    if isinstance(value, Mapping):  # `save` makes dicts of those that are not within lists
        for name, inner in value.items():
            _check_type(name, f"the key {name!r} of {where}")
            _check_type(inner, f"{where}[{name!r}]")
    elif type(value) in (list, tuple):
        for index, inner in enumerate(value):
            _check_type(inner, f"{where}[{index}]")
    else:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise ConfigError(
            f"method: {where} is a {kind}, which a saved run cannot be read back with; "
            "return tensors, numbers, text, and lists and mappings of these (int(x), x.tolist(), sorted(x))"
        )


def load(folder: Path, run: str) -> RunState | None:
    """The state to go on from; None where there is none.

    Raises DataError for a damaged one, ConfigError for that of another run or of a newer version.
    """
    path = folder / NAME
    try:
        with zipfile.ZipFile(path) as file:  # torch writes checksums and does not look at them
            if (damaged := file.testzip()) is not None:
                raise ValueError(f"{damaged} has another checksum")
        content = torch.load(path, weights_only=True)
        if not isinstance(content, dict):
            raise TypeError(f"it is a {type(content).__name__}")
        if content["run"] != run:
            raise ConfigError(
                f"{path}: belongs to run {content['run']}, not to {run}; remove it, and the run starts from round 1"
            )
        if content["format"] != FORMAT:
            raise ConfigError(
                f"{path}: has format {content['format']}, this version reads {FORMAT}; the one that wrote it goes on"
            )
        if not (lines := tuple(content["lines"].splitlines(keepends=True))):
            raise ValueError("no round is finished")
        return RunState(
            state=State(server=dict(content["server"]), clients=dict(content["clients"])),
            lines=lines,
            measured=dict(content["measured"]),
            exchange=dict(content["exchange"]),
        )
    except FileNotFoundError:
        return None
    except ConfigError:
        raise
    except Exception as error:  # whatever torch raises for bytes that it did not write
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise DataError(f"{path}: is damaged ({reason})") from None


def _without_the_rest(tensor: Tensor) -> Tensor:
    """The tensor on the host; a copy where it is a view of a larger storage, which torch would write, too."""
    tensor = tensor.cpu()
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size() else tensor
