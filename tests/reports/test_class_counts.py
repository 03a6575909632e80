"""The classes of each client: a run writes them down, and a page draws them without any data set."""

import json
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from benchmark.errors import DataError
from benchmark.federated import environment
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.papers.computed import clients_of
from benchmark.papers.item import Cell, Drawing, Item
from benchmark.records.collect import read_records
from benchmark.records.run import run
from benchmark.sharing.verify import data_faults
from reports.item_figures import item_picture
from reports.item_results import ItemResults
from tests.conftest import tiny_experiment

PLAIN = tiny_experiment(federation=replace(tiny_experiment().federation, rounds=1))
APART = replace(
    PLAIN,
    data=replace(PLAIN.data, N_s=0, label_setting="drawn_apart", labelled_share=0.1),
    method=SupervisedFL(batch_size=8),
)
NOT_RUN = replace(PLAIN, federation=replace(PLAIN.federation, K=3, C=3))


def item_of(*experiments) -> Item:
    """Build a figure of the classes of these cells' clients, a panel per cell."""
    cells = []
    for number, experiment in enumerate(experiments):
        setting: dict[str, str | int | float] = {"method": "A", "alpha": number}
        cells.append(Cell(label=f"A/{number}", setting=setting, experiment=experiment, role="partition"))
    drawing = Drawing(kind="class_counts", panels=("alpha",))
    return Item(name="toy/fig", title="T", profile="demo", cells=tuple(cells), drawing=drawing)


def heights_of(bars: LineCollection) -> list[float]:
    return [top[1] - bottom[1] for bottom, top in bars.get_segments()]


def drawn(item: Item, records) -> dict[str, np.ndarray]:
    """Measure the bars of each panel, by its title: (K, d) images."""
    picture = item_picture(ItemResults(item, records))
    assert picture is not None
    panels = {}
    for ax in picture.figure.axes:
        if ax.collections:
            columns = [heights_of(bars) for bars in ax.collections if isinstance(bars, LineCollection)]
            panels[ax.get_title(loc="left")] = np.array(columns).round().astype(int).T
    return panels


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    for experiment in (PLAIN, APART):
        run(experiment, results)
    return read_records(results, [PLAIN.cell_key, APART.cell_key], with_reference=False)


def refuse(*_, **__):
    raise DataError("no data set is here")


def test_a_run_s_record_has_the_classes_of_each_holder(records, printed):
    """They are those of `fssl data partition`."""
    words = ["--data=digits", "--federation.K=4", "--federation.C=4", "--partition.R=0.4", "--json"]
    at_server = json.loads(printed("data", "partition", "--data.N_s=20", *words))
    counted = {"clients": at_server["counts"], "server": at_server["server_counts"]}
    assert records[PLAIN.cell_key][0].class_counts == counted
    apart = ["--data.N_s=0", "--data.label_setting=drawn_apart", "--data.labelled_share=0.1", "--method=supervised_fl"]
    at_clients = json.loads(printed("data", "partition", *apart, *words))
    counted = {"clients": at_clients["counts"], "labelled": at_clients["labelled_counts"], "server": [0] * 10}
    assert records[APART.cell_key][0].class_counts == counted


def test_a_page_draws_them_from_the_record_without_data(records, monkeypatch):
    """A cell without a run has the draw from equal classes."""
    monkeypatch.delenv("FSSL_DATA", raising=False)
    monkeypatch.setattr(environment, "load", refuse)
    panels = drawn(item_of(PLAIN, APART, NOT_RUN), records)
    expected = {
        "alpha = 0, seed 0": records[PLAIN.cell_key][0].class_counts["clients"],
        "alpha = 1, seed 0, labelled": records[APART.cell_key][0].class_counts["labelled"],
        "alpha = 1, seed 0": records[APART.cell_key][0].class_counts["clients"],
        "alpha = 2, equal classes": clients_of(NOT_RUN),
    }
    assert panels.keys() == expected.keys()
    for title, counts_Kd in expected.items():
        np.testing.assert_array_equal(panels[title], counts_Kd)


def test_an_older_record_without_them_still_reads_and_is_not_drawn(records):
    run_0 = records[PLAIN.cell_key][0]
    data = {name: value for name, value in run_0.manifest["data"].items() if name != "class_counts"}
    older = replace(run_0, manifest={**run_0.manifest, "data": data})
    assert older.class_counts == {} and data_faults([older]) == ([], set())
    assert list(drawn(item_of(PLAIN), {PLAIN.cell_key: {0: older}})) == ["alpha = 0, equal classes"]


def test_edited_counts_are_found(records):
    run_0 = records[PLAIN.cell_key][0]
    assert data_faults([run_0]) == ([], set())
    counts = {**run_0.class_counts, "server": [2] * 9 + [3]}
    edited = replace(run_0, manifest={**run_0.manifest, "data": {**run_0.manifest["data"], "class_counts": counts}})
    (fault,), _ = data_faults([edited])
    assert "class_counts" in fault


def test_images_without_known_classes_are_not_counted():
    """STL-10's own unlabelled images: only the server's are counted."""
    plain = environment.prepare(PLAIN)
    data = replace(PLAIN.data, unlabelled="extra")
    extra = replace(plain, experiment=replace(PLAIN, data=data))
    assert extra.class_counts == {"server": plain.class_counts["server"]}
