"""Mirror a run's history from its record to Weights & Biases (W&B).

Recorded rounds that W&B lacks are sent first, so that a killed run, or an agent without a network,
leaves no gap and repeats no round. W&B's step is the round. W&B never ends a run or changes a
number: after its first failure, which is printed in one line, nothing more is sent. If an offline
run is killed, data that W&B has not written may be lost; `fssl wandb-rebuild` rebuilds its runs
from the records.
"""

import contextlib
import netrc
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytorch_lightning as pl

from benchmark.config import kind_of
from benchmark.data.folder import public_name
from benchmark.errors import ConfigError, FsslError, one_line
from benchmark.experiment import Experiment, published, to_json
from benchmark.federated.module import FederatedModule
from benchmark.federated.stopping import Preempted
from benchmark.methods.registry import method_name
from benchmark.records.provenance import commit
from benchmark.records.record import RunRecord, metrics_in, read_run

PROJECT = "fssl"
LONGEST_TAG = 64  # number of characters that W&B allows
SECONDS_TO_START = 30.0
SECONDS_TO_ANSWER = 3.0
Mode = Literal["online", "offline"]


def unreachable() -> str | None:
    """Return why runs cannot go online: no key, or no answer at WANDB_BASE_URL in
    `SECONDS_TO_ANSWER`. Return None if they can.
    """
    address = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    host = address.hostname or ""
    if not os.environ.get("WANDB_API_KEY") and not (_in_netrc(address.netloc) or _in_netrc(host)):
        return "no API key was found; set WANDB_API_KEY, or type `wandb login`"
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((host, port), timeout=SECONDS_TO_ANSWER).close()
    except (OSError, ValueError) as error:
        return f"{host} cannot be reached ({error})"
    return None


def _in_netrc(host: str) -> bool:
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def labels_of(experiment: Experiment, words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels for finding the run: {"group": the item or "grid", "name", "tags"}.

    `words` has the names that the user gave the run: {"cell": "ssfl/tab2:FedAvg/full"}, factors, or
    nothing.
    """
    item, _, label = str(words.get("cell", "")).partition(":")
    factors = " ".join(f"{name}={value}" for name, value in words.items() if name not in ("cell", "profile", "seed"))
    method = method_name(experiment.method)
    partition = kind_of(type(experiment.partition))
    tags = (public_name(experiment.data.name), method, partition, experiment.profile, f"code {commit()['commit'][:12]}")
    return {
        "group": item or ("grid" if factors else experiment.profile),
        "name": f"{label or factors or f'{method} {experiment.cell_key[:6]}'}, seed {experiment.seed}",
        "tags": [tag[:LONGEST_TAG] for tag in tags if tag],
    }


def mode_asked(word: str) -> Mode | None:
    """Return the mode for --wandb `word`, or None without a mirror. "auto" is online under a W&B
    agent, and no mirror if not.

    WANDB_MODE overrides "auto" and "online". Raise ConfigError for an unknown word.
    """
    if word not in ("auto", "online", "offline", "off"):
        raise ConfigError(f"--wandb has an unknown mode {word!r}; choose auto, online, offline or off")
    if word == "off" or (word == "auto" and "WANDB_SWEEP_ID" not in os.environ):
        return None
    mode = os.environ.get("WANDB_MODE", "online")
    if mode == "disabled":
        return None
    return "offline" if "offline" in (word, mode) else "online"


class WandbMirror(pl.Callback):
    """A callback that mirrors one run to W&B, each round after it is recorded.

    Call `finish` after the run, whatever its outcome. `failed` is true if W&B has raised an error.
    """

    def __init__(
        self,
        experiment: Experiment,
        record: Callable[[], RunRecord | None],
        *,
        words: Mapping[str, Any],
        mode: Mode,
        wandb_folder: Path,
        folder_name: str,
        agents_run: Mapping[str, str] | None = None,
    ) -> None:
        """Create the mirror; `record` reads the current record of the run.

        `words` is described in `labels_of`, `wandb_folder` is for W&B's own files, and `folder_name` is the name of the
        run's folder. `agents_run` has the id, and possibly the project, of the run that an agent's W&B already has
        (`made_by_agent`).
        """
        self._experiment, self._record, self._labels = experiment, record, labels_of(experiment, words)
        self._mode, self._wandb_folder = mode, wandb_folder
        # The same for every attempt of the run; W&B does not allow "@" in ids.
        own_id = f"{experiment.cell_key}-{folder_name.removeprefix('seed=').replace('@', '-')}"
        self._id = {"project": PROJECT, "id": own_id, **(agents_run or {})}
        self._run: Any = None  # wandb is only imported if it is needed
        self._next = 1  # the first round that W&B lacks
        self.failed = False

    @property
    def started(self) -> bool:
        """Return whether W&B has the run."""
        return self._run is not None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._try(self._start)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        line = {"round": pl_module.rounds_done, **pl_module.metrics}
        self._try(lambda: self._send([line]))

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Mark a run that was asked to stop as preempted, so that W&B's server assigns it again."""
        if isinstance(exception, Preempted) and self.started:
            self._try(lambda: self._run.mark_preempting())

    def finish(self, exit_code: int) -> None:
        """Send the missing rounds, and end. With an exit code other than 0, W&B shows the run as failed."""
        if not self.started:
            self._try(self._start)
        self._try(self._send_recorded)
        self._try(lambda: self._run.finish(exit_code=exit_code))
        self._run = None

    def _start(self) -> None:
        import wandb

        mode = self._mode
        if mode == "online" and (why := unreachable()) is not None:
            print(f"fssl: W&B: {why}; this run is kept offline and in its record", file=sys.stderr)
            mode = "offline"
        under_agent = "WANDB_SWEEP_ID" in os.environ  # if so, the agent determines the run's id and project
        self._wandb_folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=None if under_agent else self._id["project"],
            id=None if under_agent else self._id["id"],
            resume="allow",
            **self._labels,
            config={"cell_key": self._experiment.cell_key, **published(to_json(self._experiment))},
            dir=str(self._wandb_folder),
            mode=mode,
            settings=wandb.Settings(
                init_timeout=SECONDS_TO_START,
                console="off",
                quiet=True,
                disable_git=True,
                disable_code=True,
                disable_job_creation=True,
                x_disable_meta=True,  # command line, paths, host and user
                # Runs that one process trains together; an agent's process has one run.
                reinit="default" if under_agent else "create_new",
            ),
        )
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        self._next = max(1, int(self._run.step))  # W&B counts from the round after the last one that it has
        self._send_recorded()

    def _send_recorded(self) -> None:
        if (record := self._record()) is None:
            return
        self._send(record.rounds)
        if record.result:
            self._run.summary.update({"status": record.status, "rounds": record.result["rounds"]})

    def _send(self, lines: Iterable[Mapping[str, Any]]) -> None:
        for line in lines:
            if line["round"] >= self._next:
                # W&B adds its own clocks.
                self._run.log({"round": line["round"], **metrics_in(line)}, step=line["round"])
                self._next = line["round"] + 1

    def _try(self, act: Callable[[], object]) -> None:
        if self.failed:
            return
        try:
            act()
        except Exception as error:  # the run continues, whatever W&B raises
            self.failed = True
            print(
                f"fssl: W&B: {one_line(error)}; the run continues, and `fssl wandb-rebuild` mirrors its record",
                file=sys.stderr,
            )


@contextlib.contextmanager
def mirrored(
    experiment: Experiment, folder: Path, *, words: Mapping[str, Any], mode: Mode | None, wandb_folder: Path
) -> Iterator[list[pl.Callback]]:
    """Yield the callbacks that mirror the run in `folder` during training; none without a mode.

    A run that a different process has finished is mirrored from its record.
    """
    if mode is None:
        yield []
        return
    mirror = WandbMirror(
        experiment, lambda: read_run(folder), words=words, mode=mode, wandb_folder=wandb_folder, folder_name=folder.name
    )
    try:
        yield [mirror]
    except FsslError as error:
        if mirror.started:  # a run that did not start in this folder has nothing to show
            mirror.finish(error.exit_code)
        raise
    mirror.finish(0)


def made_by_agent(record: RunRecord) -> Mapping[str, str] | None:
    """Return the W&B run of the last sweep agent that trained this run, {"id", "project"}, or None without one."""
    attempts = record.manifest.get("attempts", [])
    return next((attempt["wandb"] for attempt in reversed(attempts) if "wandb" in attempt), None)


def agents_run(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the W&B run that a sweep's agent made for this process, {"id", "project"}, or None without an agent.

    The entity is left out, because it may be a person's name.
    """
    if "WANDB_SWEEP_ID" not in environ or not environ.get("WANDB_RUN_ID"):
        return None
    project = environ.get("WANDB_PROJECT")
    return {"id": environ["WANDB_RUN_ID"], **({"project": project} if project else {})}
