"""pfl-research on the common work: its own simulated backend, FederatedAveraging and local loop.

    python -m tests.performance.peers.pfl_driver --threads 2 [--channels-last]
    torchrun --standalone --nproc-per-node 2 -m tests.performance.peers.pfl_driver --processes 2 --threads 1

Under torchrun every process takes every second holder and the changes are added up with gloo, as pfl does it. The local
step is pfl's: it asks the network for a loss and takes the optimizer from here.
"""

import os
from collections.abc import Iterator, Mapping

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from tests.performance.peers.laps import Laps, arguments, report, say
from tests.performance.peers.work import LEARNING_RATE, Weights, Work, loss_of, network_of, sgd, views_of, weights_of


class Learner(nn.Module):
    """The network with the two functions that pfl asks of it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, **batch: Tensor) -> Tensor:
        return loss_of(self.network, batch)

    def metrics(self, **batch: Tensor) -> Mapping[str, object]:
        return {}  # nothing is evaluated


class Holders(FederatedDatasetBase):
    """All holders in every cohort, in turn among the processes; a cohort is a round."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work
        self._round = 0

    def __next__(self) -> tuple[PyTorchTensorDataset, int]:
        raise StopIteration  # single holders are never asked for

    def get_cohort(self, cohort_size: int) -> Iterator[tuple[PyTorchTensorDataset, int]]:
        self._round += 1
        distributed = pytorch_ops.distributed
        for holder in self._work.holders[distributed.global_rank : cohort_size : distributed.world_size]:
            views = views_of(self._work, holder, self._round)
            yield PyTorchTensorDataset(tensors=views, user_id=str(holder)), 0


class Clock(TrainingProcessCallback):
    """Notes when a round has been averaged, and the first mean."""

    def __init__(self, laps: Laps) -> None:
        self._laps = laps
        self.after_first: Weights | None = None

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self._laps.lap()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self._laps.lap()
        if self.after_first is None:
            self.after_first = weights_of(model.pytorch_model.network)
        return False, Metrics()


def run(work: Work, channels_last: bool, rounds: int, clock: Clock) -> None:
    """`rounds` rounds through pfl; the clock is called at the end of each."""
    learner = Learner(network_of(work, channels_last))
    model = PyTorchModel(learner, sgd, torch.optim.SGD(learner.parameters(), lr=1.0))
    holders = Holders(work)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=len(work.holders),
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=holders, val_data=holders),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=LEARNING_RATE
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )


def main() -> None:
    options = arguments(__doc__)
    options.setup.apply()
    launched = "TORCHELASTIC_RUN_ID" in os.environ
    clock = Clock(laps := Laps(os.getppid() if launched else None))  # the launcher's tree holds all processes
    run(options.work, options.setup.channels_last, options.rounds, clock)
    assert clock.after_first is not None
    if pytorch_ops.distributed.global_rank == 0:
        say({"peer": "pfl", **report(options, laps, clock.after_first, ["pfl"])})


if __name__ == "__main__":
    main()
