"""Drive pfl-research (`pfl[pytorch]`): its simulated backend, FederatedAveraging and local loop, under torchrun.

Every process takes every so-many-th holder, and the changes are added up with gloo, as pfl does it.
"""

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

from tests.performance.peers import work
from tests.performance.peers.work import Setup, Turns
from tests.performance.works import sgd_of


class Learner(nn.Module):
    """The network with the two functions that pfl asks of it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, **batch: Tensor) -> Tensor:
        return work.loss_of(self.network, batch)

    def metrics(self, **batch: Tensor) -> Mapping[str, object]:
        return {}  # nothing is evaluated


class Holders(FederatedDatasetBase):
    """All holders in every cohort, in turn among the processes; a cohort is a round."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self._known, self._round = work.environment_for(setup), 0

    def __next__(self) -> tuple[PyTorchTensorDataset, int]:
        raise StopIteration  # single holders are never asked for

    def get_cohort(self, cohort_size: int) -> Iterator[tuple[PyTorchTensorDataset, int]]:
        self._round += 1
        here = pytorch_ops.distributed
        for holder in work.holders(self._known)[here.global_rank : cohort_size : here.world_size]:
            images, _ = work.images_for(self._known, holder, self._round)
            yield PyTorchTensorDataset(tensors=images, user_id=str(holder)), 0


class InTurn(TrainingProcessCallback):
    """The first process waits for its turn after each round, and the others for it."""

    def __init__(self, setup: Setup) -> None:
        self._first = pytorch_ops.distributed.global_rank == 0
        self._turns = Turns(setup, ("pfl", "torch")) if self._first else None

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if self._turns is not None:
            self._turns.lap(work.weights_of(model.pytorch_model.network))
        torch.distributed.barrier()
        return False, Metrics()


def main() -> None:
    setup = work.setup_given()
    known = work.environment_for(setup)
    learner, data = Learner(work.network_for(setup)), Holders(setup)
    _, size = work.images_for(known, 0, 1)
    optimizer = torch.optim.SGD(learner.parameters(), lr=1.0)
    model = PyTorchModel(learner, lambda parameters, lr: sgd_of(known.experiment.optimizer, learner), optimizer)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=setup.rounds,
            evaluation_frequency=setup.rounds + 1,
            train_cohort_size=len(work.holders(known)),
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=size, local_num_epochs=1, local_learning_rate=known.experiment.optimizer.lr
        ),
        callbacks=[InTurn(setup)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
