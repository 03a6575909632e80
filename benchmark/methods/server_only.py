"""Server only: training on labels in one place, the bounds of other methods.

With the server's labels alone it is the lower bound of the SSFL experiments and "Partially Supervised" of SemiFL's
Tables 1 and 3; with everyone's images and labels it is their "Fully Supervised". T local steps of SSFL's Eq. 3 a round;
no client trains. With static batch norms the statistics are those of the images trained on, asked from all holders
where they are everyone's. On everyone's images the rate is the clients' (`optimizer.lr`), not `server_lr`.
"""

from dataclasses import dataclass
from typing import Literal

from benchmark.config import Count, added
from benchmark.errors import ConfigError
from benchmark.methods import protocol as fl
from benchmark.methods.shared import ServerUpdate, clients_with_labels
from benchmark.methods.static_norm import with_static_statistics


@dataclass(frozen=True, kw_only=True)
class ServerOnly(fl.Method):
    """One job a round, at the server."""

    batch_size: Count = 64  # B
    momentum_kept: bool = False  # whether momentum buffers outlive a round of T steps
    # Whose images it trains on. "everyones": the server's and all clients', with labels (label_setting everywhere).
    images: Literal["servers", "everyones"] = added("servers")

    needs = frozenset({"server", "everywhere"})
    asks_for_statistics = True

    def check(self, setup: fl.Setup) -> None:
        if self.images == "everyones" and not clients_with_labels(setup):
            raise ConfigError(
                "method.images: 'everyones', but the clients' labels are hidden; choose data.label_setting everywhere"
            )

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        everyones = self.images == "everyones"
        part: fl.PartName = "everyones" if everyones else "labelled"
        data = {"labelled": fl.Stream(part=part, batch_size=self.batch_size, views=("weak",))}
        holder, update = fl.CENTRAL if everyones else fl.SERVER, ServerUpdate(keeps_momentum=self.momentum_kept)
        sends = world.fit_one(holder, update, {"student": state.server["student"]}, data, keeps="server")
        student = with_static_statistics(sends["student"], world, range(world.K) if everyones else ())
        return fl.State(server={"student": student}), {}
