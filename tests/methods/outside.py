"""A method that the package knows nothing of, as a researcher would write it: one file, loaded by name.

fssl run --method tests.methods.outside:ServerLast
"""

from dataclasses import dataclass

from benchmark.methods.protocol import SERVER, Job, Key, State, Stream
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
        jobs = [self.job(k, update, state.server["student"], unlabelled, world) for k in world.cohort()]
        average = mean([outcome.sends["student"] for outcome in world.fit(jobs)])
        labelled = Stream(part="labelled", batch_size=self.batch_size, views=("weak",))
        (last,) = world.fit([self.job(SERVER, ServerUpdate(), average, labelled, world)])
        return State(server={"student": last.sends["student"]}), {}

    def job(self, holder, update, weights, stream, world):
        receives = {"student": weights}
        key = Key(client=holder)
        return Job(key=key, update=update, receives=receives, data={stream.part: stream}, limit=world.limit)

    def models(self, state):
        return {"student": state.server["student"]}
