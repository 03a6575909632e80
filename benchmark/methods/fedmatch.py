"""FedMatch: labels and other images train separate weights, and clients learn from the models most like their own.

Jeong, Yoon, Yang, Hwang. Federated Semi-Supervised Learning with Inter-Client Consistency & Disjoint Learning. ICLR
2021, arXiv:2006.12097, section 3. Released code: wyjeong/FedMatch, 4947aa2. Local work is in `disjoint`, what
crosses the network in `sparse`.

Labels at the clients: each takes both losses on every batch, and sigma and psi are averaged. Labels at the server: it
trains sigma on them first, alone; clients train psi. Averages are uniform. Every `helper_interval` rounds each client
that took part before is sent the psi of its H helpers: the clients whose last model was nearest to its own last model
by the output for one fixed image of noise (a KD-tree in the released code; here all distances, with the same result).

Departures and switches (each a field below where it is one):
1. `down`. Only entries that moved by more than delta go down, too; a client keeps its own value of the others (paper).
   The released code counts so, and then trains from the server's exact weights (client.py: `_train_one_round`); as
   what is handed over is what is counted here, "released_code" sends and counts all of them.
2. A client's first time costs both weight sets whole; the released code counts it as a change of the common start.
3. psi is sent with entries of at most `psi_threshold` as zero; as released they decide what has changed, and unrounded
   values are sent. They differ by 0.00001 at most. The global psi is evaluated so, as released (layers.py).
4. No rate that falls by a third when a client's validation loss stands still; `optimizer.schedule` is everybody's.
5. Batches are reshuffled in every pass; the released code never shuffles. With `federation.epochs` a client passes over
   its longer stream so often; with T it takes T batches. Released: 5 steps with 5 labels a class, 6 without labels.
6. Views of labels and of pseudo-labels are plain, the other is the experiment's strong view (released: RandAugment).
7. Norms: sigma and psi add up in scale and shift as in any weight; batch norm has statistics that would belong to
   neither, and is refused. The paper's ResNet-9 has no norm (`model.norm = none`), nor a bias.
8. Labelled images at the server beside labels at clients take no part.
9. `warm_start_rounds`: rounds on labels alone first; reduced profiles need them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmark.errors import ConfigError
from benchmark.methods.averaging import RunningMean
from benchmark.methods.disjoint import (
    DisjointUpdate,
    EmbedUpdate,
    Lambdas,
    PsiUpdate,
    ServerSigmaUpdate,
    SigmaUpdate,
    summed,
)
from benchmark.methods.objectives import check_counts, check_threshold
from benchmark.methods.protocol import SERVER, Job, Key, Limit, Setup, State, Stream, Tree, Weights, World
from benchmark.methods.proximal_fixmatch import check_not_negative
from benchmark.methods.sparse import applied, changes, hard_threshold

Sets = dict[str, Weights]  # "sigma" and "psi"


@dataclass(frozen=True, kw_only=True)
class FedMatch:
    """Defaults are the released config.py's for labels at the server; comments have those for labels at the clients."""

    lambdas: Lambdas = Lambdas()
    threshold: float = 0.75  # tau
    helpers: int = 2  # H        0: no inter-client consistency, and the vote is the client's own
    helper_interval: int = 10  # rounds
    psi_factor: float = 0.2  # psi starts as this times sigma
    psi_threshold: float = 1e-5  # l1_thres     5e-6 with labels at the clients
    delta_threshold: float = 1e-5  # delta_thres  5e-5 with labels at the clients
    down: Literal["paper", "released_code"] = "paper"
    batch_size: int = 100  # 102 with labels at the clients: as many batches as of labels
    labelled_batch_size: int = 10  # at a client
    server_batch_size: int = 100
    warm_start_rounds: int = 0

    needs = frozenset({"server", "every_client", "share"})
    takes_missing_updates = True  # averages are of whoever sent something

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        check_not_negative(self, "psi_factor", "psi_threshold", "delta_threshold")
        check_not_negative(self.lambdas, "s", "i", "a", "l2", "l1")

    def check(self, setup: Setup) -> None:
        check_counts(self, batch_size=1, labelled_batch_size=1, server_batch_size=1, warm_start_rounds=0)
        check_counts(self, helpers=0, helper_interval=1)
        if setup.model.norm in ("bn", "sbn"):
            raise ConfigError(
                f"model.norm: {setup.model.norm!r} has statistics, which belong to neither sigma nor psi; "
                "'none' (the paper's) or 'gn' would be right"
            )

    def init(self, setup: Setup) -> State:
        sigma = setup.initial_weights()
        psi = {name: self.psi_factor * value for name, value in sigma.items()}
        return State(server={"sigma": sigma, "psi": psi, "known": {}, "outputs": {}})

    def models(self, state: State) -> dict[str, Weights]:
        return {"theta": summed(state.server["sigma"], hard_threshold(state.server["psi"], self.psi_threshold))}

    def round(self, state: State, world: World) -> tuple[State, Mapping[str, float]]:
        """One round. "known" has what each client ended its last round with, "outputs" what that said to the noise."""
        at_clients = any(world.labelled[client] for client in range(world.K))
        warm = world.round <= self.warm_start_rounds
        current: Sets = {"sigma": state.server["sigma"], "psi": state.server["psi"]}
        if not at_clients:
            current = {**current, "sigma": self._server_sigma(current, world)}
        ends: dict[int, Sets] = {}
        helped = 0
        if at_clients or not warm:
            update = self._update(SigmaUpdate if warm else DisjointUpdate if at_clients else PsiUpdate)
            ends, helped = self._clients(state, current, world, update)
        for name in update.trains if ends else ():
            average = RunningMean()
            for sets in ends.values():
                average.add(sets[name])
            current[name] = average.value()
        known = {**state.server["known"], **{str(client): sets for client, sets in ends.items()}}
        outputs = {**state.server["outputs"], **self._outputs(ends, world)}
        server = {**current, "known": known, "outputs": outputs}
        return State(server=server, clients=state.clients), {"helpers/clients": float(helped)}

    def _update(self, kind: type[DisjointUpdate]) -> DisjointUpdate:
        return kind(
            lambdas=self.lambdas,
            threshold=self.threshold,
            psi_threshold=self.psi_threshold,
            delta_threshold=self.delta_threshold,
        )

    def _server_sigma(self, current: Sets, world: World) -> Weights:
        """sigma after the server's pass over its labels; psi is only read."""
        job = Job(
            key=Key(client=SERVER),
            update=self._update(ServerSigmaUpdate),
            receives={**current},
            data={"labelled": self._labelled(self.server_batch_size)},
            limit=world.limit,
            begins=current,
        )
        (outcome,) = world.fit([job])
        return outcome.sends["sigma"]

    def _clients(
        self, state: State, current: Sets, world: World, update: DisjointUpdate
    ) -> tuple[dict[int, Sets], int]:
        """What each client of the cohort ended with, and how many of them had helpers."""
        jobs, starts, helped = [], [], 0
        for client in world.cohort():
            receives, start = self._down(state.server["known"].get(str(client)), current)
            helpers = self._helpers(state, world, client) if "psi" in update.trains else []
            if helpers:
                sent = [changes(start["psi"], psi, self.delta_threshold) for psi in helpers]
                receives = {**receives, "helpers": {str(index): tree for index, tree in enumerate(sent)}}
                helped += 1
            starts.append(start)
            jobs.append(
                Job(
                    key=Key(client=client),
                    update=update,
                    receives=receives,
                    data=self._streams(update),
                    limit=world.limit,
                    begins=start,
                )
            )
        ends: dict[int, Sets] = {}
        for start, outcome in zip(starts, world.fit(jobs), strict=True):
            if not outcome.sat_out:
                sent_up = {name: applied(start[name], tree) for name, tree in outcome.sends.items()}
                ends[outcome.key.client] = {**start, **sent_up}
        return ends, helped

    def _down(self, known: Sets | None, current: Sets) -> tuple[Tree, Sets]:
        """What a client is sent, and what it makes of that: changes to what it kept, or all where it kept nothing."""
        if known is None or self.down == "released_code":
            return {**current}, current
        sent = {name: changes(known[name], weights, self.delta_threshold) for name, weights in current.items()}
        return sent, {name: applied(known[name], tree) for name, tree in sent.items()}

    def _helpers(self, state: State, world: World, client: int) -> list[Weights]:
        """The psi of the clients nearest to this one, in the rounds that have helpers; none for a new client."""
        outputs = state.server["outputs"]
        if world.round % self.helper_interval or str(client) not in outputs:
            return []
        return [state.server["known"][name]["psi"] for name in nearest(str(client), outputs, self.helpers)]

    def _outputs(self, ends: Mapping[int, Sets], world: World) -> dict[str, Tensor]:
        """Each new model's answer to the image of noise, read at the server."""
        if not self.helpers:
            return {}
        jobs = [
            Job(
                key=Key(client=SERVER, draw=1 + place),
                update=EmbedUpdate(),
                receives={"theta": summed(sets["sigma"], sets["psi"])},
                data={},
                limit=Limit(steps=0),
            )
            for place, sets in enumerate(ends.values())
        ]
        return {str(client): outcome.sends["output"] for client, outcome in zip(ends, world.fit(jobs), strict=True)}

    def _streams(self, update: DisjointUpdate) -> dict[str, Stream]:
        labelled = {"labelled": self._labelled(self.labelled_batch_size)}
        unlabelled = {
            "unlabelled": Stream(
                part="unlabelled", batch_size=self.batch_size, views=("plain", "strong"), drop_last=False
            )
        }
        return {**(labelled if "sigma" in update.trains else {}), **(unlabelled if "psi" in update.trains else {})}

    def _labelled(self, batch_size: int) -> Stream:
        return Stream(part="labelled", batch_size=batch_size, views=("plain",), drop_last=False)


def nearest(client: str, outputs: Mapping[str, Tensor], count: int) -> Sequence[str]:
    """The `count` other clients whose output_D lies nearest to this client's, nearest first; ties by number."""
    others = sorted((name for name in outputs if name != client), key=int)
    distances = {name: float(torch.dist(outputs[name].double(), outputs[client].double())) for name in others}
    return sorted(others, key=lambda name: distances[name])[:count]
