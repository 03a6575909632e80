"""Server only: training on the server's labels alone, the bound that every federated method has to beat.

The "labels only" lower bound of the SSFL experiments; T local steps of Eq. 3 a round, no client takes part.
"""

from dataclasses import dataclass

from benchmark.config import Count
from benchmark.methods.protocol import SERVER, Job, Key, Limit, Method, Round, State, Stream, World
from benchmark.methods.shared import ServerUpdate


@dataclass(frozen=True, kw_only=True)
class ServerOnly(Method):
    """One job a round, at the server."""

    batch_size: Count = 64  # B
    momentum_kept: bool = False  # whether momentum buffers outlive a round of T steps

    needs = frozenset({"server", "everywhere"})

    def round(self, state: State, world: World) -> Round:
        job = Job(
            key=Key(client=SERVER),
            update=ServerUpdate(keeps_momentum=self.momentum_kept),
            receives={"student": state.server["student"]},
            data={"labelled": Stream(part="labelled", batch_size=self.batch_size, views=("weak",))},
            limit=Limit(steps=world.T),
            keeps="server",
        )
        (outcome,) = world.fit([job])
        return State(server={"student": outcome.sends["student"]}), {}
