"""Flower (`flwr[simulation]`, Ray actors) on the common work.

    python -m tests.performance.peers.flower_driver --processes 2 --threads 1 [--channels-last]

One supernode for each holder, the server's labelled job among them, so that no actor waits for it; `--processes` actors
share the cores. FedAvg is Flower's own, every holder counts alike, nothing is evaluated.
"""

import os
from collections.abc import Iterable

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from tests.performance.peers.laps import Laps, arguments, report, say
from tests.performance.peers.work import Setup, Weights, Work, network_of, reused_network, train, weights_of


class TimedFedAvg(FedAvg):
    """FedAvg of all holders that notes when a round has been averaged, and the first mean."""

    def __init__(self, holders: int, laps: Laps) -> None:
        super().__init__(min_train_nodes=holders, min_available_nodes=holders, fraction_evaluate=0.0)
        self._laps = laps
        self.after_first: Weights | None = None

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        self._laps.lap()
        if arrays is not None and self.after_first is None:
            self.after_first = dict(arrays.to_torch_state_dict())
        return arrays, metrics


def client_app(work: Work, setup: Setup) -> ClientApp:
    """What an actor runs for each message."""
    app = ClientApp()

    @app.train()
    def local_training(message: Message, context: Context) -> Message:
        setup.apply()
        holder = work.holders[int(context.node_config["partition-id"])]
        network = reused_network(work, setup.channels_last)
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(network, work, holder, int(message.content["config"]["server-round"]))
        records = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
        return Message(content=RecordDict(records), reply_to=message)

    return app


def server_app(work: Work, strategy: FedAvg, laps: Laps, rounds: int) -> ServerApp:
    app = ServerApp()

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        laps.lap()
        strategy.start(grid=grid, initial_arrays=ArrayRecord(weights_of(network_of(work))), num_rounds=rounds)

    return app


def main() -> None:
    os.environ.update({"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"})
    options = arguments(__doc__)
    options.setup.apply()
    laps = Laps()
    holders = len(options.work.holders)
    strategy = TimedFedAvg(holders, laps)
    run_simulation(
        server_app=server_app(options.work, strategy, laps, options.rounds),
        client_app=client_app(options.work, options.setup),
        num_supernodes=holders,
        backend_config={
            "client_resources": {"num_cpus": options.threads, "num_gpus": 0.0},
            "init_args": {"num_cpus": options.threads * options.processes, "log_to_driver": False},
        },
    )
    assert strategy.after_first is not None
    say({"peer": "flower", **report(options, laps, strategy.after_first, ["flwr", "ray"])})


if __name__ == "__main__":
    main()
