"""FedLab on the common work: a serial trainer, one client after another in one process, as its tutorials do it.

    python -m tests.performance.peers.fedlab_driver --threads 2 [--channels-last]

The server's labelled job is one more holder of the trainer. FedLab flattens weights with `view(-1)`, which networks in
channels-last order refuse; that set-up trains a second network and copies the weights there and back.
"""

import logging
import random

from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch import Tensor, nn

from tests.performance.peers.laps import Laps, arguments, report, say
from tests.performance.peers.work import Setup, Weights, Work, network_of, train, weights_of


class Trainer(FedAvgSerialClientTrainer):
    """All holders of a round, one after another."""

    def __init__(self, work: Work, setup: Setup) -> None:
        super().__init__(network_of(work), num_clients=len(work.holders))
        self._work = work
        self._network: nn.Module = network_of(work, channels_last=True) if setup.channels_last else self._model
        self._round = 0

    def local_process(self, payload: list[Tensor], id_list: list[int]) -> None:
        self._round += 1
        for index in id_list:
            self.set_model(payload[0])
            self._train(self._work.holders[index])
            self.cache.append([self.model_parameters])

    def _train(self, holder: int) -> None:
        copied = self._network is not self._model
        if copied:
            self._network.load_state_dict(self._model.state_dict())
        train(self._network, self._work, holder, self._round)
        if copied:
            self._model.load_state_dict(self._network.state_dict())


class Pipeline(StandalonePipeline):
    """FedLab's own loop; its hook at the end of a round takes the time."""

    def __init__(self, handler: FedAvgServerHandler, trainer: Trainer, laps: Laps) -> None:
        super().__init__(handler, trainer)
        self._laps = laps
        self.after_first: Weights | None = None

    def evaluate(self) -> None:
        self._laps.lap()
        if self.after_first is None:
            self.after_first = weights_of(self.handler.model)


def main() -> None:
    options = arguments(__doc__)
    options.setup.apply()
    logging.getLogger().setLevel(logging.WARNING)  # FedLab would write a line a client
    random.seed(options.work.seed)
    laps = Laps()
    handler = FedAvgServerHandler(network_of(options.work), global_round=options.rounds, sample_ratio=1.0)
    pipeline = Pipeline(handler, Trainer(options.work, options.setup), laps)
    laps.lap()
    pipeline.main()
    assert pipeline.after_first is not None
    say({"peer": "fedlab", **report(options, laps, pipeline.after_first, ["fedlab"])})


if __name__ == "__main__":
    main()
