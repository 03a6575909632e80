"""Seeds of the partition and of the initial weights that do not follow the run's seed (SSFL, appendix A.4)."""

from dataclasses import replace

import torch

from benchmark.experiment import Experiment
from benchmark.federated.environment import Environment, prepare, weights_of
from tests.conftest import tiny_experiment


def pinned(seed: int, partition_seed: int | None = 2019, weight_seed: int | None = 1) -> Experiment:
    e = tiny_experiment()
    return replace(
        e, seed=seed, data=replace(e.data, partition_seed=partition_seed), model=replace(e.model, seed=weight_seed)
    )


def holdings(environment: Environment) -> list[list[int]]:
    return [environment.split.server_N.tolist(), *(client.tolist() for client in environment.assignment.unlabelled)]


def are_equal(first: Environment, second: Environment) -> bool:
    mine, theirs = weights_of(first.network()), weights_of(second.network())
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_all_runs_have_the_partition_and_the_weights_of_the_pinned_seeds():
    """Seed 2019 divides as a run of seed 2019 does, and seed 1 initialises as a run of seed 1 does."""
    environments = [prepare(pinned(seed)) for seed in (0, 7)]
    plain = {seed: prepare(pinned(seed, None, None)) for seed in (0, 1, 2019)}
    for environment in environments:
        assert holdings(environment) == holdings(plain[2019]) != holdings(plain[0])
        assert are_equal(environment, plain[1]) and not are_equal(environment, plain[0])


def test_other_draws_follow_the_seed_of_the_run():
    first, second = (prepare(pinned(seed)).world(1, lambda jobs: iter(())) for seed in (0, 7))
    assert first.generator("any").random() != second.generator("any").random()


def test_pinned_seeds_are_cells_of_their_own():
    plain = pinned(0, None, None)
    keys = {plain.cell_key, pinned(0).cell_key, pinned(0, None).cell_key, pinned(0, 2019, None).cell_key}
    assert len(keys) == 4 and plain.cell_key == tiny_experiment().cell_key
