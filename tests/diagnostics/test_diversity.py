"""Gradient diversity by hand.

g_1 = (3, 4), g_2 = (-3, 0), g_3 = (0, 1): the sum is (0, 5).
l2: norms 5, 3, 1; squares 25 + 9 + 1 = 35 over 25 = 1.4; plain (5 + 3 + 1) / 5 = 1.8.
l1: norms 7, 3, 1; sum's norm 5: squares (49 + 9 + 1) / 25 = 2.36; plain 11 / 5 = 2.2.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmark.diagnostics.diversity import CohortDiversity, GradientDiversity, StreamingDiversity
from benchmark.federated.trainer import build_trainer, fit
from benchmark.methods.protocol import SERVER
from tests.federated.helpers import equal, module_of
from tests.methods.golden import TRACES
from tests.methods.test_fedmatch import experiment as fedmatch
from tests.methods.watch import Watch

VECTORS = [(3.0, 4.0), (-3.0, 0.0), (0.0, 1.0)]
BY_HAND = {"l2/squared": 1.4, "l2/plain": 1.8, "l1/squared": 2.36, "l1/plain": 2.2}


def quotients(vectors):
    diversity = StreamingDiversity()
    for vector in vectors:
        diversity.add({"w": torch.tensor(vector[:1]), "b": torch.tensor(vector[1:])})
    return diversity.quotients()


def test_by_hand():
    assert quotients(VECTORS) == pytest.approx(BY_HAND)


@given(st.integers(1, 30), st.lists(st.floats(0.1, 10.0), min_size=2, max_size=5))
def test_equal_updates(C, vector):
    """C equal updates: C g^2 / (C g)^2 = 1 / C with squares, C g / (C g) = 1 without."""
    found = quotients([tuple(vector)] * C)
    expected = {"l2/squared": 1 / C, "l2/plain": 1.0, "l1/squared": 1 / C, "l1/plain": 1.0}
    assert found == pytest.approx(expected, rel=1e-5)


def test_updates_that_cancel_have_no_diversity():
    assert quotients([(1.0, 2.0), (-1.0, -2.0)]) == {}


def test_inside_groups_and_as_released_by_hand():
    """Groups {g_1, g_2}, of sum (0, 4), and {g_3}: l2 squares 34 / 16 = 2.125 and 1, l1 squares 58 / 16 = 3.625 and 1.
    Means by clients: 2/3 2.125 + 1/3 = 1.75; released, from means: 2/3 2 x 2.125 + 1/3 and 2/3 2 x 3.625 + 1/3.
    With the server's (1, 0): sums (1, 4) and (1, 1), so 2/3 3 x 35/17 + 1/3 2 x 2/2 = 4.7843."""
    cohort = CohortDiversity("delta")
    for client, (vector, group) in enumerate(zip(VECTORS, (0, 0, 1), strict=True)):
        cohort.add(client, {"w": torch.tensor(vector)}, group)
    alone = cohort.metrics()
    assert {norm: alone[f"diversity/delta/{norm}/clients"] for norm in BY_HAND} == pytest.approx(BY_HAND)
    inside = {"l2/squared": 1.75, "l2/plain": 5 / 3, "l1/squared": 2.75, "l1/plain": 2.0}
    assert {norm: alone[f"diversity/delta/{norm}/clients_in_group"] for norm in inside} == pytest.approx(inside)
    assert alone["diversity/delta/l2/released/clients"] == pytest.approx(19 / 6)
    assert alone["diversity/delta/l1/released/clients"] == pytest.approx(31 / 6)
    assert not [name for name in alone if "with_server" in name]
    cohort.add(SERVER, {"w": torch.tensor((1.0, 0.0))})
    assert cohort.metrics()["diversity/delta/l2/released/with_server"] == pytest.approx(2 * 35 / 17 + 2 / 3)


@given(st.integers(1, 30))
def test_one_group_as_released_is_n_times_eq_1(n):
    """So equal updates have 1 whatever n is, where Eq. 1 has 1 / n; and no group stands apart."""
    cohort = CohortDiversity("gradient")
    for client in range(n):
        cohort.add(client, {"w": torch.tensor([1.0, 2.0])})
    found = cohort.metrics()
    assert found["diversity/gradient/l2/released/clients"] == pytest.approx(1.0)
    assert found["diversity/gradient/l2/squared/clients"] == pytest.approx(1 / n)
    assert not [name for name in found if "group" in name]


class Noted(GradientDiversity):
    """And what the module's metrics were after each round."""

    def __init__(self, every: int) -> None:
        super().__init__(every)
        self.seen: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        super().on_train_batch_end(trainer, pl_module, *args)
        self.seen.append(dict(pl_module.metrics))


def run_with(experiment, every=0):
    module, noted = module_of(experiment), Noted(every)
    watch = Watch(module)
    fit(module, build_trainer([noted]))
    return module, noted.seen, watch


def flat(*weight_sets):
    """The sum of weight sets, as one vector."""
    return sum(torch.cat([value.double().flatten() for value in weights.values()]) for weights in weight_sets)


def test_all_sixteen_variants_and_no_number_moved(tiny):
    module, seen, _ = run_with(tiny, 2)
    names = {
        f"diversity/{kind}/{norm}/{power}/{who}"
        for kind in ("gradient", "delta")
        for norm in ("l1", "l2")
        for power in ("squared", "plain")
        for who in ("clients", "with_server")
    }
    assert len(names) == 16
    assert names <= seen[1].keys()
    assert not [name for name in seen[0] if name.startswith("diversity/gradient/")]
    plain = module_of(tiny)
    fit(plain, build_trainer())
    assert equal(module.state.server["average"], plain.state.server["average"])


def test_clients_of_several_widths_have_none():
    """HeteroFL: their updates have other lengths; the run goes on."""
    _, seen, _ = run_with(TRACES["heterofl"], 1)
    assert len(seen) == 3 and not any(name.startswith("diversity") for name in seen[-1])


def test_layers_that_clients_keep_do_not_stop_the_run():
    """LG-FedAvg: from a client's second round on the server does not send them. Its gradient is left out."""
    experiment = TRACES["lg-fedavg"]
    measured, seen, _ = run_with(experiment, 1)
    plain = module_of(experiment)
    fit(plain, build_trainer())
    assert len(seen) == experiment.federation.rounds > 1
    assert equal(next(iter(measured.models().values())), next(iter(plain.models().values())))


def test_clients_that_go_on_from_models_of_their_own_have_none():
    """EASGD: the weights received are the center, where no client's steps begin."""
    _, seen, _ = run_with(TRACES["easgd"], 1)
    assert seen and not any(name.startswith("diversity") for name in seen[-1])


def test_delta_against_the_outcomes(tiny):
    """Recomputed from the weights that went back and forth, all vectors at once."""
    _, seen, watch = run_with(tiny)
    assert len(seen) == 3
    for number, metrics in enumerate(seen, start=1):
        deltas = [flat(sent.sends["student"]) - flat(job.receives["student"]) for job, sent in watch.clients(number)]
        for norm, value in quotients(torch.stack(deltas).tolist()).items():
            assert metrics[f"diversity/delta/{norm}/clients"] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("setting", ["server", "every_client"])
def test_a_network_that_is_a_sum_of_weight_sets(setting):
    """FedMatch sends changes to what a client kept. The change of sigma + psi is that of what the client keeps; what it
    began with is still there after the round, when gradients are taken."""
    _, seen, watch = run_with(fedmatch(setting), 1)
    assert len(seen) == 3
    for number, metrics in enumerate(seen, start=1):
        deltas = [
            flat(*outcome.private.values()) - flat(*job.begins.values()) for job, outcome in watch.clients(number)
        ]
        for norm, value in quotients(torch.stack(deltas).tolist()).items():
            assert metrics[f"diversity/delta/{norm}/clients"] == pytest.approx(value, rel=1e-6)
        assert metrics["diversity/gradient/l2/squared/clients"] > 0
        assert ("diversity/gradient/l2/squared/with_server" in metrics) == (setting == "server")


def test_what_a_job_begins_with_reaches_no_engine(monkeypatch):
    """It is there to be measured, and would be sent twice."""
    module, received = module_of(fedmatch("server")), []
    plain = module.engine.fit

    def fit(jobs, *rest):
        received.extend(jobs)
        return plain(jobs, *rest)

    monkeypatch.setattr(module.engine, "fit", fit)
    module.training_step(1, 0)
    assert received and all(job.begins is None for job in received)


def test_equal_gradients_of_psi_have_a_diversity_of_one_over_c():
    """With the regularizers alone psi's gradient is 2 lambda_l2 (psi - sigma) + lambda_l1 sign(psi) at every client."""
    e = fedmatch("server")
    alone = replace(e.method, lambdas=replace(e.method.lambdas, i=0.0, a=0.0, l2=0.01))
    _, seen, _ = run_with(replace(e, method=alone), 1)
    for metrics in seen:
        assert metrics["diversity/gradient/l2/squared/clients"] == pytest.approx(1 / e.federation.C, rel=1e-5)
        assert metrics["diversity/gradient/l1/plain/clients"] == pytest.approx(1.0, rel=1e-5)
        assert metrics["diversity/gradient/l2/squared/with_server"] != pytest.approx(1 / e.federation.C, rel=1e-2)
