"""The cells of SSFL Table 2 are what they were when the committed records were made.

A change of this list makes those records worthless: then `NUMERICS` of benchmark/experiment.py is what has to move.
"""

import pytest

from benchmark.papers.catalogue import items
from tests.conftest import ROOT

# Labels and cell keys, in the order of the item.
KEYS = {
    "demo": {
        "FedAvg/small": "ced406da8a0634ec",
        "Grouping/small": "aea1577a19f31a2a",
        "Control/small": "60a978d3d37238cd",
        "FedAvg/middle": "3d29ef64298ee76c",
        "Grouping/middle": "953a4754e39754ea",
        "Control/middle": "8143494b458b5d79",
        "FedAvg/full": "c23356bd33f49169",
        "Grouping/full": "47e5cae2e1cdfd54",
        "Control/full": "bc277d75f7b54f05",
        "Server only": "42519585d6248786",
        "Central FixMatch": "efd14ce9fc2d522e",
        "K = 6, R = 0.4, T = 16": "c23356bd33f49169",
    },
    "laptop": {
        "FedAvg/small": "a29993b0aefab729",
        "Grouping/small": "4c8997736bc862c2",
        "Control/small": "213b4c5b486565b3",
        "FedAvg/middle": "5056056464a96044",
        "Grouping/middle": "d364e0088981fc46",
        "Control/middle": "fc6b22183cfe27e8",
        "FedAvg/full": "c5f09fd09b21e466",
        "Grouping/full": "85ef9edd8e0e454e",
        "Control/full": "3e4ee44a3493d401",
        "Server only": "1f6f1545f0ca7327",
        "Central FixMatch": "ef7d3428dddee47a",
        "K = 10, i.i.d., T = 1": "cbd27dea5868112d",
        "K = 10, i.i.d., T = 16": "34c1871683da88c5",
        "K = 10, R = 0.4, T = 16": "c5f09fd09b21e466",
    },
    "gpu": {
        "FedAvg/small": "cd2850491df05a3b",
        "Grouping/small": "ccdd581179f272c8",
        "Control/small": "55db2e760f068c50",
        "FedAvg/middle": "f4dac2a12d7b2389",
        "Grouping/middle": "5cb059d4586f4d4c",
        "Control/middle": "e4a2d07e0c4cf11e",
        "FedAvg/full": "fed7b75308471c52",
        "Grouping/full": "60f9ff3f404e7ae9",
        "Control/full": "c1f89cd6b9490c2b",
        "Server only": "1f6ed868a401e71a",
        "Central FixMatch": "223e1c2c2a84b3ff",
        "K = 47, i.i.d., T = 1": "d88f9c81b91898ef",
        "K = 47, i.i.d., T = 16": "4005a1f92f5ad2c5",
        "K = 47, R = 0.4, T = 16": "fed7b75308471c52",
    },
    "paper": {
        "FedAvg/small": "fa10dffff3ad09ca",
        "Grouping/small": "4fbbc970061a8668",
        "Control/small": "11bce8144db2cd27",
        "FedAvg/middle": "73ebeee66cacbd79",
        "Grouping/middle": "d85372b150d1b065",
        "Control/middle": "b3a29a42730e5adf",
        "FedAvg/full": "5570439475ee87be",
        "Grouping/full": "2804e30690a9cabb",
        "Control/full": "252470e1393bd75b",
        "Server only": "c57c433c73e94635",
        "Central FixMatch": "6bac7e557ffa6ece",
        "K = 47, i.i.d., T = 1": "37587016f36d9de7",
        "K = 47, i.i.d., T = 16": "571229862ee32356",
        "K = 47, R = 0.4, T = 16": "5570439475ee87be",
    },
}


@pytest.mark.parametrize("profile", KEYS)
def test_labels_and_keys_stay(profile):
    (item,) = items(["ssfl/tab2"], profile)
    assert {cell.label: cell.cell_key for cell in item.cells} == KEYS[profile]
    assert [cell.label for cell in item.cells] == list(KEYS[profile])


def test_the_committed_records_are_the_laptop_s():
    """Every cell of the laptop profile has its records in results/reference/."""
    committed = {path.name for path in (ROOT / "results" / "reference").iterdir()}
    assert set(KEYS["laptop"].values()) <= committed
