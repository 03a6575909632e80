"""Save and load `state.pt`, the one file that an unfinished run resumes from.

The file is replaced as a whole. It contains the method's state at the server and at the clients,
and the lines of all finished rounds. Every random stream has a name, so that nothing else is needed
to resume bit by bit.

It is in torch's own format, written tensor by tensor directly to the file. It is read with
`weights_only` after its checksums are verified: a stranger's file runs no code, and a damaged one
changes no number.
"""

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmark.errors import ConfigError, DataError
from benchmark.federated.trees import mapped
from benchmark.files import replacing
from benchmark.methods.protocol import State

NAME = "state.pt"
FORMAT = 3  # raised when the content changes its meaning; formats 1 and 2 were the files under `checkpoints`


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The state of a run after its last finished round."""

    state: State
    lines: tuple[str, ...]  # lines of rounds.jsonl, each with its end of line
    measured: Mapping[str, int]  # `record.measurements`: all rounds measure the same
    exchange: Mapping[str, Any]  # `CommunicationSummary.summary` so far
    measures: Mapping[str, Any] = field(default_factory=dict)  # `OwnMeasures.summary` so far
    downloaded: Mapping[str, int] = field(default_factory=dict)  # `FederatedModule.downloaded`

    @property
    def round(self) -> int:
        return len(self.lines)


def save(folder: Path, run_state: RunState, run: str, check: Callable[[], object] = lambda: None) -> None:
    """Replace `state.pt`. `run` names the cell and the seed; `check` is called just before the file is replaced.

    Peak memory is the size of the state, except for tensors that are part of a larger storage, which
    are copied first. Raise CannotWrite and the errors of `check`; the previous file is then intact.
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
        "measures": dict(run_state.measures),
        "downloaded": dict(run_state.downloaded),
    }
    with replacing(folder / NAME, check) as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch's own error, which hides the error of a full disk
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


PLAIN = (type(None), bool, int, float, complex, str, bytes)


def check_types(state: State) -> None:
    """Raise ConfigError for a value that `load` could not read back: only tensors and plain values are allowed."""
    for name, value in state.server.items():
        _check_type(value, f"State.server[{name!r}]")
    for client, tree in state.clients.items():
        for name, value in tree.items():
            _check_type(value, f"State.clients[{client!r}][{name!r}]")


def _check_type(value: Any, where: str) -> None:
    if type(value) in PLAIN or isinstance(value, Tensor):
        return
    if isinstance(value, Mapping):  # `save` converts mappings to dicts, except within lists
        for name, inner in value.items():
            _check_type(name, f"the key {name!r} of {where}")
            _check_type(inner, f"{where}[{name!r}]")
    elif type(value) in (list, tuple):
        for index, inner in enumerate(value):
            _check_type(inner, f"{where}[{index}]")
    else:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise ConfigError(
            f"method: {where} is a {kind}, which cannot be read back from a saved run; "
            "return tensors, numbers, text, and lists and mappings of these (int(x), x.tolist(), sorted(x))"
        )


def load(folder: Path, run: str) -> RunState | None:
    """Return the state to resume from, or None if there is none.

    Raise DataError for a damaged one, and ConfigError for a state of a different run or of a newer
    version.
    """
    path = folder / NAME
    try:
        with zipfile.ZipFile(path) as file:  # torch writes checksums but does not verify them
            if (damaged := file.testzip()) is not None:
                raise ValueError(f"{damaged} has a wrong checksum")
        content = torch.load(path, weights_only=True)
        if not isinstance(content, dict):
            raise TypeError(f"it contains a {type(content).__name__}")
        if content["run"] != run:
            raise ConfigError(
                f"{path} belongs to run {content['run']}, not to {run}; remove it, and the run starts from round 1"
            )
        if content["format"] != FORMAT:
            raise ConfigError(
                f"{path} has format {content['format']}, but this version reads {FORMAT}; resume with the version "
                "that wrote it"
            )
        if not (lines := tuple(content["lines"].splitlines(keepends=True))):
            raise ValueError("no round is finished")
        return RunState(
            state=State(server=dict(content["server"]), clients=dict(content["clients"])),
            lines=lines,
            measured=dict(content["measured"]),
            exchange=dict(content["exchange"]),
            measures=dict(content.get("measures", {})),
            downloaded=dict(content.get("downloaded", {})),
        )
    except FileNotFoundError:
        return None
    except ConfigError:
        raise
    except Exception as error:  # torch may raise anything for bytes that it did not write
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise DataError(f"{path} is damaged ({reason})") from None


def _without_the_rest(tensor: Tensor) -> Tensor:
    """Return the tensor on the host; copy a view of a larger storage, which torch would also write."""
    tensor = tensor.cpu()
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size() else tensor
