"""Jobs over Ray: the bits of one process, whatever is interrupted, and one line where Ray or a worker is missing."""

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmark.errors import ConfigError, FsslError
from benchmark.federated.engines import build_engine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.process_pool import ProcessPool
from tests.conftest import tiny_experiment
from tests.federated.test_process_pool import Fails, jobs_of
from tests.methods.toys import Counting, ToConstant, equal_trees

ray = pytest.importorskip("ray", reason="pip install 'fssl-bench[ray]'")
BASE = tiny_experiment()


@pytest.fixture(scope="module")
def environment() -> Environment:
    return prepare(replace(BASE, method=replace(BASE.method, momentum="released_code")))


@pytest.fixture(scope="module")
def engine(environment: Environment) -> Iterator:
    from benchmark.federated.ray_engine import RayEngine

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    with RayEngine(environment, 1) as built:  # each worker loads torch anew
        yield built
    ray.shutdown()


def test_a_whole_run_is_the_same_as_in_a_process_pool(environment, engine):
    """Three rounds of SSFL that keep momentum at the clients: weights, private state and metrics, bit by bit."""
    states, metrics = [], []
    with ProcessPool(environment, 1) as pool:
        for each in (pool, engine):
            module = FederatedModule(environment, each)
            for number in (1, 2, 3):
                module.training_step(number, 0)
            states.append({"server": module.state.server, "clients": dict(module.state.clients)})
            metrics.append(module.metrics)
    assert states[0]["clients"] and equal_trees(*states) and metrics[0] == metrics[1]


def test_outcomes_come_in_job_order_and_gradients_too(environment, engine):
    """The last job is the longest and begins first; two draws of one client run one after the other."""
    jobs = jobs_of(environment, Counting(), steps=(1, 2, 3, 9), draws=(0, 1))
    with ProcessPool(environment, 1) as pool:
        kept: list[dict] = [{}, {}]
        expected, found = (list(each.fit(jobs, 1, kept[i])) for i, each in enumerate((pool, engine)))
        gradients = [list(each.gradients(jobs[:4], 2, {})) for each in (pool, engine)]
    assert [outcome.key for outcome in found] == [job.key for job in jobs]
    assert all(equal_trees(left.sends, right.sends) for left, right in zip(expected, found, strict=True))
    assert equal_trees(*kept) and all(equal_trees(*pair) for pair in zip(*gradients, strict=True))


def test_a_failure_comes_when_its_outcome_is_due_and_the_engine_goes_on(environment, engine):
    outcomes = engine.fit(jobs_of(environment, Fails()), 1, {})
    assert next(outcomes).key.client == 0
    with pytest.raises(ConfigError, match="tau: 7") as found:
        next(outcomes)
    assert "client 1 in round 1 (Fails)" in found.value.__notes__[0]
    assert len(list(engine.fit(jobs_of(environment, ToConstant()), 1, {}))) == 4


def test_more_workers_than_the_cluster_has_cpus_are_refused(environment, engine):
    with pytest.raises(ConfigError, match="--workers: 3 of 1 CPUs each, but the Ray cluster has 2; choose 1 to 2"):
        build_engine("ray", environment, 3, 1)


def test_without_ray_the_extra_is_named(environment, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # what makes `import ray` raise ImportError
    with pytest.raises(ConfigError, match=r"Ray is not installed; type pip install 'fssl-bench\[ray\]'"):
        build_engine("ray", environment, None, 1)


def test_a_killed_worker_is_named_in_one_line(environment, engine):
    outcomes = engine.fit(jobs_of(environment, ToConstant(), steps=(1, 1, 1, 500)), 1, {})
    next(outcomes)
    for worker in engine._jobs_of:
        ray.kill(worker)
    with pytest.raises(FsslError, match=r"a Ray worker ended during the job of client \d in round 1"):
        list(outcomes)
    assert not engine._jobs_of and not engine._waiting
