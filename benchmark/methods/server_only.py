"""Server only: supervised training in one place, the lower and upper bounds of other methods.

With only the server's labels it is the supervised baseline of the SSFL experiments and "Partially Supervised" in
SemiFL's Tables 1 and 3. With the images and labels of all participants it is their "Fully Supervised". A round has T
local steps on SSFL's Eq. 3, and no client trains. Static batch norms have the statistics of the training images, which
are collected from all participants if all images are used. In this case the learning rate is the clients'
(`optimizer.lr`), not `server_lr`.
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
    """Supervised training in one job per round, at the server or on all data."""

    batch_size: Count = 64  # B
    momentum_kept: bool = False  # whether momentum buffers are kept between rounds of T steps
    # The training images. "everyones": images and labels of the server and all clients (label_setting everywhere).
    images: Literal["servers", "everyones"] = added("servers")

    needs = frozenset({"server", "everywhere", "open"})
    asks_for_statistics = True

    def check(self, setup: fl.Setup) -> None:
        if self.images == "everyones" and not clients_with_labels(setup):
            raise ConfigError(
                "method.images is 'everyones', but the clients' labels are hidden; choose data.label_setting everywhere"
            )

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        everyones = self.images == "everyones"
        part: fl.PartName = "everyones" if everyones else "labelled"
        data = {"labelled": fl.Stream(part=part, batch_size=self.batch_size, views=("weak",))}
        participant = fl.CENTRAL if everyones else fl.SERVER
        update = ServerUpdate(keeps_momentum=self.momentum_kept)
        sends = world.fit_one(participant, update, {"student": state.server["student"]}, data, keeps="server")
        student = with_static_statistics(sends["student"], world, range(world.K) if everyones else ())
        return fl.State(server={"student": student}), {}
