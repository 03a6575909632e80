"""A method that the package knows nothing of, as a researcher would write it: one file, loaded by name.

fssl run --method tests.methods.outside:ServerLast
"""

from dataclasses import dataclass

from benchmark.methods.protocol import SERVER, State, Stream
from benchmark.methods.shared import ServerUpdate, mean
from benchmark.methods.ssfl import CRL


@dataclass(frozen=True, kw_only=True)
class ServerLast:
    """Clients train on pseudo-labels; the server's labels come last."""

    threshold: float = 0.95
    batch_size: int = 16
    needs = frozenset({"server"})

    def check(self, setup):
        """Works with any K, C and T."""

    def init(self, setup):
        return State(server={"student": setup.initial_weights()})

    def round(self, state, world):
        update = CRL(threshold=self.threshold).update(keeps_momentum=False)
        unlabelled = Stream(part="unlabelled", batch_size=self.batch_size, views=("weak", "strong"))
        jobs = [world.job(k, update, state.server, {"unlabelled": unlabelled}) for k in world.cohort()]
        average = mean([outcome.sends["student"] for outcome in world.fit(jobs)])
        labelled = Stream(part="labelled", batch_size=self.batch_size, views=("weak",))
        return State(server=world.fit_one(SERVER, ServerUpdate(), {"student": average}, {"labelled": labelled})), {}

    def models(self, state):
        return {"student": state.server["student"]}
