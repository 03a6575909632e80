"""Ours: a run's rounds over the process pool, as launchers and `fssl run` have it."""

from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.federated.process_pool import ProcessPool
from tests.performance.peers.work import Turns, environment_for, setup_given


def main() -> None:
    setup = setup_given()
    keep_freed_memory()
    known = environment_for(setup)
    with ProcessPool(known, setup.processes) as pool:
        module = FederatedModule(known, pool)
        turns = Turns(setup, ("torch",))
        for number in range(1, setup.rounds + 1):
            module.training_step(number, 0)
            (mean,) = module.models().values()
            turns.lap(mean)


if __name__ == "__main__":
    main()
