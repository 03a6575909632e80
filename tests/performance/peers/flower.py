"""Drive Flower (`flwr[simulation]`): Ray actors of one core each, a node for every participant, its own FedAvg, no
evaluation.
"""

from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from tests.performance.peers import work
from tests.performance.peers.work import Setup, Turns


class InTurn(FedAvg):
    """FedAvg of all holders, which waits for its turn after each round."""

    def __init__(self, nodes: int) -> None:
        super().__init__(min_train_nodes=nodes, min_available_nodes=nodes, fraction_evaluate=0.0)
        self.turns: Turns | None = None

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None and self.turns is not None
        self.turns.lap(arrays.to_torch_state_dict())
        return arrays, metrics


def client_app(setup: Setup) -> ClientApp:
    """Define the work of an actor for each message."""
    app = ClientApp()

    @app.train()
    def local_training(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        known, network = work.environment_for(setup), work.reused_network(setup)
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        holder = work.holders(known)[int(context.node_config["partition-id"])]
        work.train(network, known, holder, int(message.content["config"]["server-round"]))
        records = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
        return Message(content=RecordDict(records), reply_to=message)

    return app


def server_app(setup: Setup, strategy: InTurn) -> ServerApp:
    app = ServerApp()

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy.turns = Turns(setup, ("flwr", "ray", "torch"))
        strategy.start(
            grid=grid, initial_arrays=ArrayRecord(work.weights_of(work.network_for(setup))), num_rounds=setup.rounds
        )

    return app


def main() -> None:
    setup = work.setup_given()
    nodes = len(work.holders(work.environment_for(setup)))
    run_simulation(
        server_app=server_app(setup, InTurn(nodes)),
        client_app=client_app(setup),
        num_supernodes=nodes,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": setup.processes, "log_to_driver": False},
        },
    )


if __name__ == "__main__":
    main()
