"""A few rounds of each kind of cell that the papers' tables and figures need, on the demo."""

from dataclasses import replace

import pytest

from benchmark.experiment import Experiment
from benchmark.records.record import RunRecord
from benchmark.records.run import run
from tests.conftest import record_of
from tests.papers.conftest import item_of


def trained(e: Experiment, rounds: int, warm: int, tmp_path) -> RunRecord:
    """`warm`: rounds of labels alone, for the methods that have any."""
    method = replace(e.method, warm_start_rounds=warm) if hasattr(e.method, "warm_start_rounds") else e.method
    run(replace(e, method=method, federation=replace(e.federation, rounds=rounds)), tmp_path)
    record = record_of(next(tmp_path.rglob("result.json")).parent)
    accuracy = record.selected("test/accuracy")
    assert accuracy is not None and 0.0 < accuracy <= 1.0
    return record


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("semifl/tab4", "E=1/K=2"),
        ("fedswitch/tab2", "Labels at Client/Batch-NonIID/FedSwitch"),
        ("fedswitch/tab3", "Labels at Client/Streaming-NonIID/TS-Client EMA"),
        ("rscfed/tab3", "FedIRM (weight adju.)"),
        ("rscfed/tab4", "RSCFed/K=50"),
        ("rscfed/tab5", "Fed-Consist"),
    ],
)
def test_each_kind_of_the_other_papers_has_its_metrics(name, label, tmp_path):
    """A round of labels alone and two with clients; RSCFed's tables have four metrics."""
    record = trained(item_of(name, "demo").cell(label).experiment, 3, 1, tmp_path)
    for metric in ("test/auroc", "test/precision", "test/recall"):
        value = record.selected(metric)
        assert value is not None and 0.0 <= value <= 1.0
