"""Drive our suite: a run's rounds over the process pool, as in `fssl run`, or over the reference engine."""

from contextlib import closing

from benchmark.federated.engines import EngineOptions, build_engine
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.module import FederatedModule
from tests.performance.peers.work import Turns, environment_for, setup_given


def main() -> None:
    setup = setup_given()
    keep_freed_memory()
    known = environment_for(setup)
    name, workers = ("pool", setup.processes) if setup.processes else ("reference", None)
    with closing(build_engine(EngineOptions(engine=name, workers=workers, threads=setup.threads), known)) as engine:
        module = FederatedModule(known, engine)
        turns = Turns(setup, ("torch",))
        for number in range(1, setup.rounds + 1):
            module.training_step(number, 0)
            (mean,) = module.models().values()
            turns.lap(mean)


if __name__ == "__main__":
    main()
