"""Hours on a GPU are those of its rows; estimates are called so."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.cli.main import main
from benchmark.errors import ConfigError, DataError
from benchmark.experiment import Experiment, Federation
from benchmark.federated import devices
from benchmark.federated.devices import Choice
from benchmark.models.build import Model
from reports.performance_page import MARK, with_cards
from sweeps.cards import (
    MEASURED,
    Card,
    Row,
    card_named,
    cards,
    choices_of,
    devices_or_card,
    estimated_cards,
    fastest_ways,
    on_card,
    rates_of,
    table_of,
)

EMNIST = Model(network="emnist_cnn", norm="none")
RUN = Experiment(model=EMNIST, federation=Federation(K=10, C=10, T=1, rounds=10), profile="gpu")


def row(engine: str, ms: float, **fields: Any) -> Row:
    common = {"setting": "SSFL", "network": "emnist_cnn", "norm": "none", "precision": "fp32", "gflop": 6.0}
    return Row(**{**common, "engine": engine, "ms": ms, **fields})


def entry(*rows: Row, **fields: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "card": "NVIDIA H200",
        "date": "2026-12-01",
        "driver": "580",
        "torch": "2.15.0",
        "cuda": "13.0",
    }
    facts |= {"cudnn": 92600, "code": {"commit": "0123456789abcdef", "changes": None}, "quick": False}
    facts |= {"complete": True, "tests": {"result": "12 passed"}, "rates": {"fp32": 1e13}}
    return {**facts, "rows": [asdict(row) for row in rows], **fields}


def written(results: Path, *entries: dict[str, Any]) -> Path:
    path = results / MEASURED
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"cards": list(entries)}))
    return results


def test_a_measured_row_gives_back_its_own_time() -> None:
    """1,000 steps of the row's own FLOPs take 1,000 times its milliseconds, with each engine."""
    rows = (row("reference", 3.0), row("captured", 0.75))
    card = Card(name="NVIDIA H200", rows=rows, rates={"fp32": 1e13}, facts={"torch": "2.15"})
    there = on_card(card, [(RUN, 1000, 1000 * 6e9)])
    assert there.hours["reference"] * 3600 == pytest.approx(3.0)
    assert there.hours["captured"] * 3600 == pytest.approx(0.75)
    assert there.engine == "captured" and all(there.measured.values())


def test_a_step_with_more_flops_takes_them_at_the_card_s_rate() -> None:
    """6 GFLOP more at 10 TFLOP/s are .6 ms more; a network that was not timed is an estimate."""
    card = Card(name="X", rows=(row("captured", 0.75),), rates={"fp32": 1e13}, facts={"torch": "2.15"})
    there = on_card(card, [(RUN, 1, 12e9)])
    assert there.hours["captured"] * 3.6e6 == pytest.approx(1.35)
    other = replace(RUN, model=Model(network="fedavg_cnn", norm="none"))
    unknown = on_card(card, [(other, 1, 12e9)])
    assert not unknown.measured["captured"] and unknown.hours["captured"] * 3.6e6 > 1.2


def test_a_single_job_has_nobody_to_train_with() -> None:
    alone = replace(RUN, federation=replace(RUN.federation, K=1, C=1))
    card = Card(name="X", rows=(row("reference", 3.0), row("captured", 0.75)), rates={"fp32": 1e13})
    assert on_card(card, [(alone, 1000, 6e12)]).hours["captured"] * 3600 == pytest.approx(3.0)


def test_the_row_is_of_the_order_that_runs_have_there(monkeypatch) -> None:
    """Contiguous without a choice; what was chosen for this GPU with one."""
    rows = (row("captured", 0.9), row("captured", 0.5, images="channels last", cudnn_benchmark=True))
    card = Card(name="NVIDIA H200", rows=rows, rates={"fp32": 1e13})
    found = card.row(RUN, "captured")
    assert found is not None and found.ms == 0.9
    choice = Choice(images="channels last", cudnn_benchmark=True)
    monkeypatch.setattr(devices, "measured_choices", lambda: {("NVIDIA H200", "emnist_cnn", "none", "fp32"): choice})
    found = card.row(RUN, "captured")
    assert found is not None and found.ms == 0.5


def test_estimates_are_the_facts_of_a_table(tmp_path) -> None:
    """SSFL Table 2 at paper scale: 42.6 million steps of 6.1 GFLOP were estimated as 6.2 hours, and 38 of today."""
    card = card_named("h200", tmp_path)
    assert card is not None and not card.is_measured
    there = on_card(card, [(replace(RUN, profile="paper"), 42.6e6, 2.6e17)])
    assert there.hours["captured"] == pytest.approx(6.2, rel=0.05)
    assert there.hours["reference"] == pytest.approx(38, rel=0.05)
    assert there.measured == {"reference": True, "captured": False}
    elsewhere = card_named("h100", tmp_path)
    assert elsewhere is not None and not any(row.measured for row in elsewhere.rows)


def test_a_measured_card_takes_the_place_of_its_estimate(tmp_path) -> None:
    results = written(tmp_path, entry(row("captured", 0.75)), entry(row("captured", 1.0), card="NVIDIA A100-SXM4-40GB"))
    known = cards(results)
    assert known["NVIDIA H200"].is_measured and len(known["NVIDIA H200"].rows) == 1
    assert not known["NVIDIA H100"].is_measured
    for word in ("h200", "H200", "nvidia-h200", "NVIDIA H200"):
        assert card_named(word, results) == known["NVIDIA H200"]
    assert card_named("a100", results) == known["NVIDIA A100-SXM4-40GB"]
    assert card_named("nvidia", results) is None is card_named("cpu", results)


def test_a_trial_is_no_measurement(tmp_path) -> None:
    results = written(tmp_path, entry(row("captured", 0.75), quick=True))
    assert cards(results)["NVIDIA H200"] == estimated_cards()["NVIDIA H200"]


@pytest.mark.parametrize("content", ["{", "{}", '{"cards": [{}]}', '{"cards": [{"card": "x", "rows": [{"a": 1}]}]}'])
def test_a_damaged_file_is_one_line(content, tmp_path) -> None:
    path = written(tmp_path) / MEASURED
    path.write_text(content)
    with pytest.raises(DataError, match="is damaged"):
        cards(tmp_path)


def test_devices_of_this_machine_are_named_as_before(tmp_path) -> None:
    assert devices_or_card("cpu", tmp_path) == (("cpu",), None)
    assert devices_or_card(None, tmp_path) == (None, None)
    named, card = devices_or_card("h200", tmp_path)
    assert named is None and card is not None and card.name == "NVIDIA H200"
    with pytest.raises(ConfigError, match="h100, h200"):
        devices_or_card("h20", tmp_path)


def test_the_fastest_way_is_chosen_where_all_four_were_timed_with_one_engine() -> None:
    ways = [("contiguous", False, 4.0), ("channels last", False, 5.0), ("contiguous", True, 3.0)]
    rows = [row("captured", ms, images=images, cudnn_benchmark=timed) for images, timed, ms in ways]
    assert fastest_ways(rows) == [] == choices_of("X", rows, "today")
    rows.append(row("captured", 2.0, images="channels last", cudnn_benchmark=True))
    assert [found.ms for found in fastest_ways([*rows, row("reference", 1.0)])] == [2.0]
    lines = choices_of("X", rows, "today")
    assert 'images = "channels last"' in lines and "cudnn_benchmark = true" in lines and 'card = "X"' in lines
    rows[0] = replace(rows[0], ms=1.0)
    assert choices_of("X", rows, "today") == []  # the usual way


def test_a_card_s_rate_is_that_of_its_large_networks() -> None:
    rows = [row("captured", 0.01), row("captured", 20.0, gflop=300.0), row("reference", 30.0, gflop=300.0)]
    assert rates_of(rows) == {"fp32": pytest.approx(1.5e13)}


def test_the_table_has_a_line_per_setting_and_marks_estimates() -> None:
    rows = [
        row("reference", 3.0),
        row("captured", 0.5, measured=False),
        replace(row("stacked", 1.0), ms=None, error="E: x"),
    ]
    head, _, *lines = table_of(rows)
    assert len(lines) == 1
    cells = dict(zip(head.split("|"), lines[0].split("|"), strict=True))
    found = {name.strip(): value.strip() for name, value in cells.items()}
    assert (found["reference, ms"], found["captured, ms"], found["stacked, ms"]) == ("3", "~0.5", "E")
    assert found["steps a second"] == "~2,000"


def test_the_page_has_measured_cards_and_estimates(tmp_path) -> None:
    results = written(tmp_path, entry(row("captured", 0.123)))
    page = with_cards(f"before\n\n{MARK}\n\nafter", results)
    assert page.startswith("before") and page.endswith("after") and MARK not in page
    assert page.index("NVIDIA H200") < page.index("NVIDIA H100") and "0.123" in page and "12 passed" in page
    assert "~" in with_cards(MARK, None)


def test_a_plan_for_a_card(tmp_path, capsys) -> None:
    """The JSON object has the GPU's hours; those of a measured GPU are its own rows'."""
    results = written(tmp_path, entry(row("captured", 0.75, network="tiny_cnn", norm="gn", gflop=0.0)))
    words = ["plan", "ssfl/tab2", "--profile", "demo", "--json", "--results", str(results), "--device", "h200"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"] == "NVIDIA H200" and found["side_by_side"] == 1
    assert found["on_card"]["measured"] and found["on_card"]["engine"] == "captured"
    least = found["local_steps"] * 0.75e-3 / 3600
    assert math.isclose(found["hours"], least + found["flops"] / 1e13 / 3600, rel_tol=1e-6)
