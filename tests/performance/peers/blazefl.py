"""Drive BlazeFL: its pool of processes over shared memory. The mean is computed like in its FedAvg.

`blazefl.contrib`, which has FedAvg with a supervised loop, needs Python 3.14; `blazefl.core` runs on 3.13, installed
with `--ignore-requires-python`.
"""

import importlib
import threading
from dataclasses import dataclass, replace

import torch
import torch.multiprocessing as mp
from blazefl.core import ProcessPoolClientTrainer, SHMHandle, deserialize_model, serialize_model
from torch import Tensor

from tests.performance.peers import work
from tests.performance.peers.work import Setup, Turns

Config = tuple[Setup, int, int]  # which holder, in which round


@dataclass
class Package:
    """What goes either way."""

    parameters: Tensor | SHMHandle


class Trainer(ProcessPoolClientTrainer[Package, Package, Config, Package]):
    def __init__(self, setup: Setup) -> None:
        self.num_parallels, self.device, self.device_count = setup.processes, "cpu", 0
        self.cache: list[Package] = []
        self.manager = mp.Manager()
        self.stop_event: threading.Event = self.manager.Event()
        self.round = 0
        self._setup, self._known = setup, work.environment_for(setup)
        self._buffer = serialize_model(work.network_for(replace(setup, channels_last=False)))

    def prepare_uplink_package_buffer(self) -> Package:
        return Package(self._buffer.clone())

    def convert_buffer_to_uplink(self, buffer: Package) -> Package:
        return buffer

    def get_client_config(self, cid: int) -> Config:
        return self._setup, work.holders(self._known)[cid], self.round

    def uplink_package(self) -> list[Package]:
        found, self.cache = self.cache, []
        return found

    @staticmethod
    def worker(
        config: Config, payload: Package, device: str, stop_event: threading.Event, *, shm_buffer: Package | None = None
    ) -> Package:
        setup, holder, round_number = config
        torch.set_num_threads(1)
        # `serialize_model` takes no other order of memory than PyTorch's own.
        plain, network = work.reused_network(replace(setup, channels_last=False)), work.reused_network(setup)
        assert shm_buffer is not None
        deserialize_model(plain, payload.parameters)
        network.load_state_dict(plain.state_dict())
        work.train(network, work.environment_for(setup), holder, round_number)
        plain.load_state_dict(network.state_dict())
        shm_buffer.parameters.copy_(serialize_model(plain))
        return Package(SHMHandle())


def main() -> None:
    setup = work.setup_given()
    if setup.channels_last:  # the pool is new in every round, and each of its processes imports it with its first SGD
        importlib.import_module("torch._dynamo")
    network, trainer = work.network_for(replace(setup, channels_last=False)), Trainer(setup)
    nodes = range(len(work.holders(work.environment_for(setup))))
    turns = Turns(setup, ("blazefl", "torch"))
    for number in range(1, setup.rounds + 1):
        trainer.round = number
        trainer.local_process(Package(serialize_model(network)), list(nodes))
        mean = torch.zeros_like(serialize_model(network))
        for sent in trainer.uplink_package():
            mean.add_(sent.parameters, alpha=1 / len(nodes))
        deserialize_model(network, mean)
        turns.lap(work.weights_of(network))
    trainer.shutdown()


if __name__ == "__main__":
    main()
