"""Where an unfinished run stands: `state.pt`, one file that is replaced whole, with all rounds so far.

It holds the method's state at the server and at the clients, the lines of all finished rounds, and what sums them up.
Every random stream has a name, so that nothing else is needed to go on bit by bit. Nothing lies beside it that could be
ahead or behind.

It is torch's own format, written tensor by tensor straight to the file, and read with `weights_only` after a look at
its checksums: a file that was put there by somebody else runs no code, and a damaged one moves no number.
"""

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmark.errors import ConfigError
from benchmark.federated.trees import mapped
from benchmark.methods.protocol import State
from benchmark.records.files import replacing

NAME = "state.pt"
FORMAT = 3  # raised when the content changes its meaning; 1 and 2 were the files under `checkpoints`


@dataclass(frozen=True, kw_only=True)
class RunState:
    """After the last finished round."""

    state: State
    lines: tuple[str, ...]  # of rounds.jsonl, each with its end of line
    last: Mapping[str, float]  # the latest value of every metric
    best: Mapping[str, Any] | None = None  # the best evaluated round so far
    exchange: Mapping[str, Any] = field(default_factory=dict)  # `Exchange.summary` so far

    @property
    def round(self) -> int:
        return len(self.lines)


def save(folder: Path, run_state: RunState, run: str, check: Callable[[], object] = lambda: None) -> None:
    """Replace `state.pt`. `run` names the cell and seed; `check` is called just before the file takes its place.

    Peak memory is that of the state, but for tensors that are a part of a larger storage, which are copied first.
    Raises CannotWrite, and whatever `check` raises; the file before is then whole.
    """
    content = {
        "format": FORMAT,
        "run": run,
        "server": mapped(run_state.state.server, _alone),
        "clients": mapped(dict(run_state.state.clients), _alone),
        "lines": "".join(run_state.lines),
        "last": dict(run_state.last),
        "best": run_state.best,
        "exchange": run_state.exchange,
    }
    with replacing(folder / NAME, check) as file:
        torch.save(content, file)


def load(folder: Path, run: str) -> tuple[RunState | None, str | None]:
    """The state to go on from, and a line to say where there is a file that cannot be read.

    Raises ConfigError for the state of another run, or of a newer version.
    """
    path = folder / NAME
    try:
        with zipfile.ZipFile(path) as file:  # torch writes checksums and does not look at them
            if (name := file.testzip()) is not None:
                raise ValueError(f"{name} has another checksum")
        content = torch.load(path, weights_only=True)
        if not isinstance(content, dict):
            raise TypeError(f"it is a {type(content).__name__}")
        its_format, its_run = content["format"], content["run"]
        state = _checked(content) if its_format == FORMAT and its_run == run else None
    except FileNotFoundError:
        return None, None
    except Exception as error:  # whatever torch raises for bytes that it did not write
        said = (str(error).strip() or repr(error)).splitlines()[0]
        return None, f"{path}: is damaged ({said}); the run starts from round 1"
    if its_run != run:
        raise ConfigError(f"{path}: belongs to run {its_run}, not to {run}; remove it, and the run starts from round 1")
    if state is None:
        raise ConfigError(
            f"{path}: has format {its_format}, this version reads {FORMAT}; the one that wrote it goes on"
        )
    return state, None


def _checked(content: Mapping[str, Any]) -> RunState:
    """Raises LookupError, TypeError, ValueError for content of another form."""
    kinds: dict[str, tuple[type, ...]] = {
        "server": (dict,),
        "clients": (dict,),
        "lines": (str,),
        "last": (dict,),
        "best": (dict, type(None)),
        "exchange": (dict,),
    }
    for name, kind in kinds.items():
        if not isinstance(content[name], kind):
            raise TypeError(f"{name} is a {type(content[name]).__name__}")
    for keeper, tree in content["clients"].items():
        if not isinstance(tree, dict | None):
            raise TypeError(f"what client {keeper} keeps is a {type(tree).__name__}")
    lines = tuple(content["lines"].splitlines(keepends=True))
    if not lines:
        raise ValueError("no round is finished")
    return RunState(
        state=State(server=content["server"], clients=content["clients"]),
        lines=lines,
        last=content["last"],
        best=content["best"],
        exchange=content["exchange"],
    )


def _alone(tensor: Tensor) -> Tensor:
    """The tensor without the rest of a storage that it is only a view of, which torch would write, too."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size() else tensor
