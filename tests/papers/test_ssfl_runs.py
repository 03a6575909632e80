"""Two rounds of each kind of cell that SSFL's tables and figures need."""

import json
from dataclasses import replace

import pytest

from benchmark.experiment import Evaluation, Experiment
from benchmark.records.run import run
from tests.conftest import record_of
from tests.papers.test_ssfl_items import item_of


def shortened(e: Experiment) -> Experiment:
    """Two rounds, the second with everything measured, no warm start."""
    method = replace(e.method, warm_start_rounds=0) if hasattr(e.method, "warm_start_rounds") else e.method
    evaluation = Evaluation(every=1, gradient_diversity_every=2)
    return replace(e, method=method, federation=replace(e.federation, rounds=2), evaluation=evaluation)


@pytest.mark.parametrize(
    ("name", "label", "server_measured"),
    [
        ("fig2", "Supervised/R=0", True),
        ("tab4", "Supervised FedAvg", False),
        ("tabg1", "digits/FixMatch", None),
        ("tab3", "Labels-at-server (non-iid)/Grouping", True),
        ("tab3", "Labels-at-client (non-iid)/Grouping", False),
        ("tabh1", "Grouping/R=0.6", False),
        ("tabi1", "Grouping", True),
        ("tab4", "DataSharing", False),
        ("tab5", "EASGD/T=8", False),
        ("tab5", "OverlapSGD/T=8", False),
    ],
)
def test_each_new_kind_of_cell_trains(name, label, server_measured, tmp_path):
    """Two rounds on the demo: an accuracy, and the changes' diversity over those that took part (None: no cohort)."""
    e = shortened(item_of(name, "demo").cell(label).experiment)
    run(e, tmp_path)
    last = json.loads(next(tmp_path.rglob("rounds.jsonl")).read_text().splitlines()[-1])
    text = json.dumps(last)
    accuracy = record_of(next(tmp_path.rglob("result.json")).parent).selected("test/accuracy")
    assert accuracy is not None and 0.0 < accuracy <= 1.0
    assert ("diversity/delta/l2/squared/clients" in text) == (server_measured is not None)
    assert ("diversity/delta/l2/squared/with_server" in text) == bool(server_measured)
