"""SSFL Table 2 as declared, and every item: whole, whatever the profile."""

import pytest

from benchmark.errors import ConfigError
from benchmark.methods.server_only import ServerOnly
from benchmark.optim.sgd import Cosine
from benchmark.papers.catalogue import items


def test_the_paper_profile_is_table_a2():
    """Rows 16 and 21 of Table A.2 and EMNIST's row of Table A.1: E = 100 epochs of 65536 / 64 steps, T = 16."""
    (item,) = items(["ssfl/tab2"], "paper")
    for cell in item.cells:
        if cell.role != "published":
            continue
        e = cell.experiment
        assert (e.partition.R_nominal, e.federation.T, e.data.N_s, e.federation.K) == (0.4, 16, 4700, 47)
        assert e.federation.rounds * e.federation.T == 100 * 65536 // 64
        assert (e.optimizer.lr, e.optimizer.weight_decay, e.optimizer.momentum) == (0.03, 1e-4, 0.9)
        schedule = e.optimizer.schedule
        assert isinstance(schedule, Cosine)
        assert (schedule.c, schedule.warmup_steps, schedule.steps) == (0.4375, 0, None)
        assert (e.method.batch_size, e.method.server_batch_size, e.method.objective.threshold) == (64, 64, 0.95)
        assert e.method.warm_start_rounds == 0
    grouping = {c.experiment.federation.C: c.experiment.method.averaging for c in item.cells if "Grouping" in c.label}
    assert {C: averaging.S for C, averaging in grouping.items()} == {10: 2, 30: 3, 47: 5}


@pytest.mark.parametrize("profile", ["demo", "laptop"])
def test_reduced_cohorts_keep_their_order_and_the_full_one_is_everybody(profile):
    (item,) = items(["ssfl/tab2"], profile)
    C = [item.cell(f"FedAvg/{size}").experiment.federation.C for size in ("small", "middle", "full")]
    K = item.cell("FedAvg/full").experiment.federation.K
    assert C[0] < C[1] < C[2] == K


def test_server_only_makes_as_many_server_steps():
    (item,) = items(["ssfl/tab2"], "laptop")
    alone, crl = item.cell("Server only").experiment, item.cell("FedAvg/small").experiment
    assert isinstance(alone.method, ServerOnly)
    assert alone.federation.T * alone.federation.rounds == crl.federation.T * crl.federation.rounds


def test_unknown_items_are_named():
    with pytest.raises(ConfigError, match="ssfl/tab22.*did you mean 'ssfl/tab2'"):
        items(["ssfl/tab22"], "demo")
