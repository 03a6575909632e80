"""The cells of SSFL Table 2 are what they were when the committed records were made.

A change of this list makes those records worthless: then `NUMERICS` of benchmark/experiment.py is what has to move.
"""

import pytest

from benchmark.papers.catalogue import items
from tests.conftest import ROOT

# Labels and cell keys, in the order of the item.
KEYS = {
    "demo": {
        "FedAvg/small": "2f68468be9863643",
        "Grouping/small": "b040854fe8913455",
        "Control/small": "5b26131db04c504b",
        "FedAvg/middle": "c27352789ad66cec",
        "Grouping/middle": "3257e6fb59eb3428",
        "Control/middle": "5fe93897bc949a91",
        "FedAvg/full": "c707aa75f927a148",
        "Grouping/full": "23c9475e55818fdd",
        "Control/full": "7106f6735d5127d3",
        "Server only": "ce873cbe444d95ff",
        "Central FixMatch": "a2c6987219d52aad",
        "K = 6, R = 0.4, T = 16": "c707aa75f927a148",
    },
    "laptop": {
        "FedAvg/small": "18a750e23444ed69",
        "Grouping/small": "50df3b9dd7a12e1a",
        "Control/small": "d51543374e9eaec7",
        "FedAvg/middle": "cbfc55b9e4fa4cfa",
        "Grouping/middle": "55bb2d63832bdbfc",
        "Control/middle": "87b13d9cd2ef784e",
        "FedAvg/full": "49e2c9f58c5a73fe",
        "Grouping/full": "46b14de5215ca60a",
        "Control/full": "769301e7dd68c644",
        "Server only": "d828c8a1723dc093",
        "Central FixMatch": "e5c14de769a84db8",
        "K = 10, i.i.d., T = 1": "541d9912f8a8b4cf",
        "K = 10, i.i.d., T = 16": "f2b0dccbdc4dc815",
        "K = 10, R = 0.4, T = 16": "49e2c9f58c5a73fe",
    },
    "gpu": {
        "FedAvg/small": "6a43c24da15b25e1",
        "Grouping/small": "d1520af4197ccc35",
        "Control/small": "a9686cb95c9a927e",
        "FedAvg/middle": "76aa070f895fa563",
        "Grouping/middle": "95b4f08a288e4777",
        "Control/middle": "061bdab195ecf50c",
        "FedAvg/full": "49a1352650a69507",
        "Grouping/full": "0611e08a82a7006a",
        "Control/full": "c7cd7e70f6ad2d53",
        "Server only": "4a19eac771d40059",
        "Central FixMatch": "8ea68330bd818b6d",
        "K = 47, i.i.d., T = 1": "75776fcf841f6c07",
        "K = 47, i.i.d., T = 16": "b83c85d91b65328b",
        "K = 47, R = 0.4, T = 16": "49a1352650a69507",
    },
    "paper": {
        "FedAvg/small": "545b56ec15b1a5bf",
        "Grouping/small": "11b02edfe8fea434",
        "Control/small": "318709896ffd32e0",
        "FedAvg/middle": "ac738e8f64bab668",
        "Grouping/middle": "76756d5f7a2b8c1b",
        "Control/middle": "a93be05d4575dfa0",
        "FedAvg/full": "2127f3499a7deeb9",
        "Grouping/full": "b9923b9d4627e37c",
        "Control/full": "5e9f407ab77109a7",
        "Server only": "93b926dc32ab12f9",
        "Central FixMatch": "49212fc339b27974",
        "K = 47, i.i.d., T = 1": "23b8c346509e2835",
        "K = 47, i.i.d., T = 16": "0310d5645f209320",
        "K = 47, R = 0.4, T = 16": "2127f3499a7deeb9",
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
