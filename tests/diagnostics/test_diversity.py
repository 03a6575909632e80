"""Gradient diversity by hand.

g_1 = (3, 4), g_2 = (-3, 0), g_3 = (0, 1): the sum is (0, 5).
l2: norms 5, 3, 1; squares 25 + 9 + 1 = 35 over 25 = 1.4; plain (5 + 3 + 1) / 5 = 1.8.
l1: norms 7, 3, 1; sum's norm 5: squares (49 + 9 + 1) / 25 = 2.36; plain 11 / 5 = 2.2.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmark.diagnostics.diversity import CohortDiversity, GradientDiversity, VectorSet, on_all_images
from benchmark.federated.module import fit
from benchmark.methods.protocol import SERVER
from benchmark.methods.shared import SupervisedUpdate
from tests.federated.helpers import agree, module_of
from tests.methods.golden import TRACES
from tests.methods.test_fedmatch import experiment as fedmatch
from tests.methods.watch import Watch

VECTORS = [(3.0, 4.0), (-3.0, 0.0), (0.0, 1.0)]
BY_HAND = {"l2/squared": 1.4, "l2/plain": 1.8, "l1/squared": 2.36, "l1/plain": 2.2}


def quotients(vectors):
    sets = (VectorSet.of({"w": torch.tensor(vector[:1]), "b": torch.tensor(vector[1:])}) for vector in vectors)
    return sum(sets, VectorSet()).quotients()


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


WHOLE = {"w": torch.tensor([3.0]), "b": torch.tensor([4.0])}
OTHERS = {"nothing": {}, "part": {"w": torch.tensor([3.0])}, "another length": {**WHOLE, "b": torch.ones(2)}}


@pytest.mark.parametrize("who", [0, SERVER])
@pytest.mark.parametrize("other", OTHERS)
@given(place=st.integers(0, 3))
def test_none_unless_all_gave_a_vector_over_the_same_entries(other, who, place):
    """Whoever it is that did not, and whenever its turn came."""
    vectors = [(1, WHOLE)] * 3
    whole, broken = CohortDiversity("delta"), CohortDiversity("delta")
    for cohort, members in ((whole, vectors), (broken, [*vectors[:place], (who, OTHERS[other]), *vectors[place:]])):
        for holder, vector in members:
            cohort.add(holder, vector)
    assert whole.metrics()["diversity/members"] == 3 and broken.metrics() == {}


class Noted(GradientDiversity):
    """And what the module's metrics were after each round."""

    def __init__(self, every: int) -> None:
        super().__init__(every)
        self.seen: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        super().on_train_batch_end(trainer, pl_module, *args)
        self.seen.append(dict(pl_module.metrics))


def run_with(experiment, every=0, images=600):
    """Run with this number of images, or all if it is 0; gradients are computed over each one."""
    experiment = replace(experiment, data=replace(experiment.data, images=images))
    module, noted = module_of(experiment), Noted(every)
    watch = Watch(module)
    fit(module, [noted])
    return module, noted.seen, watch


def flat(*weight_sets):
    """Add up weight sets, as one vector."""
    vectors = []
    for weights in weight_sets:
        vectors.append(torch.cat([value.double().flatten() for value in weights.values()]))
    return sum(vectors)


def test_gradients_are_taken_in_every_second_round_and_no_number_moved(tiny):
    module, seen, _ = run_with(tiny, 2)
    assert ["diversity/gradient/l2/squared/clients" in metrics for metrics in seen] == [False, True, False]
    plain = module_of(module.experiment)
    fit(plain)
    assert agree(module.state.server["average"], plain.state.server["average"])


def diversity_of(vectors):
    """Return {"l2/squared": ...} of vectors over named entries."""
    return quotients(torch.stack([flat(vector) for vector in vectors]).tolist())


def measured(metrics, kind):
    return {norm: metrics[f"diversity/{kind}/{norm}/clients"] for norm in BY_HAND}


def gradients_of(module, jobs, round_number, update=None, **receives):
    """Compute the gradients of the jobs' losses, or of a different update's on the same batches, for clients without a
    client state.
    """
    jobs = [replace(job, update=update or job.update, receives={**job.receives, **receives}) for job in jobs]
    return [found["student"] for found in module.engine.gradients(list(on_all_images(jobs)), round_number, {})]


def test_layers_that_clients_keep():
    """LG-FedAvg, where the server sends them once: each client's gradient, round after round, is that of cross-entropy
    at the shared layers and its own, over the shared ones."""
    module, seen, watch = run_with(TRACES["lg-fedavg"], 1)
    kept: dict[int, dict[str, torch.Tensor]] = {}
    for number, metrics in enumerate(seen, start=1):
        vectors = []
        for job, outcome in watch.clients(number):
            common = job.receives["student"]
            own = kept.get(job.key.client) or job.receives["own"]
            (found,) = gradients_of(module, [job], number, SupervisedUpdate(), student={**common, **own})
            vectors.append({name: found[name] for name in common})
            kept[job.key.client] = outcome.private["layers"]
        assert measured(metrics, "gradient") == pytest.approx(diversity_of(vectors), rel=1e-5)
        assert metrics["diversity/members"] == len(vectors) == 4
    plain = module_of(module.experiment)
    fit(plain)
    assert agree(next(iter(module.models().values())), next(iter(plain.models().values())))


def test_a_gradient_that_the_client_keeps_is_part_of_its_loss():
    """FedDyn: at theta the loss L_k - <g_k, theta> + alpha/2 ||theta - theta||^2 has the gradient of L_k, less g_k."""
    module, seen, watch = run_with(TRACES["feddyn"], 1)
    kept: dict[int, dict[str, torch.Tensor]] = {}
    for number, metrics in enumerate(seen, start=1):
        clients = watch.clients(number)
        supervised = gradients_of(module, [job for job, _ in clients], number, SupervisedUpdate())
        vectors = supervised
        if kept:
            vectors = []
            for found, (job, _) in zip(supervised, clients, strict=True):
                of_client = kept[job.key.client]
                vectors.append({name: value - of_client[name] for name, value in found.items()})
        assert measured(metrics, "gradient") == pytest.approx(diversity_of(vectors), rel=1e-4)
        assert number == 1 or measured(metrics, "gradient") != pytest.approx(diversity_of(supervised), rel=1e-4)
        kept = {job.key.client: outcome.private["gradient"] for job, outcome in clients}


def test_a_client_drawn_twice_is_one_member():
    """RSCFed: M = 2 subsets of 3 of the 4 clients; the change is that of the first local training."""
    _, seen, watch = run_with(TRACES["rscfed"], 1)
    for number, metrics in enumerate(seen, start=1):
        first = [(job, sent) for job, sent in watch.clients(number) if job.key.draw == 0]
        assert metrics["diversity/members"] == len({job.key.client for job, _ in first}) < len(watch.clients(number))
        vectors = []
        for job, sent in first:
            before = job.receives["student"]
            vectors.append({name: value - before[name] for name, value in sent.sends["student"].items()})
        assert measured(metrics, "delta") == pytest.approx(diversity_of(vectors), rel=1e-5)


def test_none_in_a_round_in_which_a_client_sits_out():
    """SemiFL, where a client without a confident pseudo-label does."""
    _, seen, _ = run_with(TRACES["semifl-released"], 1, images=0)
    assert {bool(metrics["comm/sat_out"]) for metrics in seen} == {True, False}
    for metrics in seen:
        names = {name.split("/")[1] for name in metrics if name.startswith("diversity/")}
        assert names == (set() if metrics["comm/sat_out"] else {"delta", "gradient", "members"})


def test_clients_that_are_only_asked_are_no_members():
    """Clients give static statistics, in central training and after training of their own."""
    _, seen, watch = run_with(TRACES["server-only-everyones"], 1)
    assert watch.clients() and not any(name.startswith("diversity") for metrics in seen for name in metrics)
    _, seen, watch = run_with(TRACES["supervised-fl-control"], 1)
    assert len(watch.clients(1)) > 4 and all(metrics["diversity/members"] == 4 for metrics in seen)


GOLDEN = json.loads((Path(__file__).parent / "golden_ssfl.json").read_text())  # of 4c7f552


@pytest.mark.parametrize("name", GOLDEN)
def test_ssfl_s_have_not_moved(name):
    """All values of the last of three rounds, as they were before a round could have none."""
    _, seen, _ = run_with(TRACES[name], 1, images=0)
    found = {metric: value for metric, value in seen[-1].items() if metric.startswith("diversity/")}
    assert found.pop("diversity/members") == 4
    assert found == pytest.approx(GOLDEN[name], rel=1e-5)


@pytest.mark.parametrize("name", ["easgd", "heterofl"])
def test_clients_that_do_not_begin_at_the_weights_received_have_none(name):
    """EASGD's go on from models of their own, HeteroFL's updates have other lengths; the run goes on."""
    _, seen, _ = run_with(TRACES[name], 1)
    assert len(seen) == 3 and not any(name.startswith("diversity") for name in seen[-1])


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
        assert measured(metrics, "delta") == pytest.approx(quotients(torch.stack(deltas).tolist()), rel=1e-6)
        assert metrics["diversity/gradient/l2/squared/clients"] > 0
        assert ("diversity/gradient/l2/squared/with_server" in metrics) == (setting == "server")
