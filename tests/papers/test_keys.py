"""The cells of every item are what they were when the committed records were made.

A digest is of all labels and cell keys of an item under a profile. Where one changes, the records of those cells no
longer count: then `NUMERICS` of benchmark/experiment.py is what has to move, or the change has to be undone.
"""

import hashlib

import pytest

from benchmark.papers.catalogue import ITEMS, items
from benchmark.papers.scale import PROFILES
from tests.conftest import ROOT

# demo, laptop, gpu, paper. Stand-ins of SemiFL, RSCFed and FedSwitch may still be chosen anew.
DIGESTS = {
    "ssfl/tab2": "a63a5149176c 11e980694ca2 55e28861257a c394a4cbfed2",
    "ssfl/tab1": "4f3f3213b0df 1d3620a1022e f403c1c2ddde 1530887511e0",
    "ssfl/tab3": "cefb47208f58 479e778496ff 1745a0c5e74a 96c998d4a52d",
    "ssfl/tab4": "1005c477434b 5b38c51eb351 6ccf432869b5 993e0d3197e4",
    "ssfl/tab5": "9bfe1e631d92 3ad2cd7496c9 2d9dc72aa12f d90bad4564f3",
    "ssfl/tabd1": "3f2cbe64be3c 86ad5d3712c6 f21136d7ccd5 0d41f93cdcb8",
    "ssfl/tabe1": "35135f3155dc 3a7b06794f14 ebb86e272aeb 9bb0139b370a",
    "ssfl/tabf1": "c7c55f3eda46 a30c1139c8fa 828cac5c838b 57e4fac805e2",
    "ssfl/tabg1": "aeef7fe9d737 c37fbca81b9d b83fec6eb2ce 9ae25011a4bf",
    "ssfl/tabh1": "e271c30df9d1 1aba5acdf932 cb00bfeaf21e 44c9a57b2fc3",
    "ssfl/tabi1": "db9fef8da7b8 08e7f26d91e4 a900d50fef24 9db5d5ce4b2e",
    "ssfl/tabj1": "aecd8b3953b2 726ea2b9ec43 149904280be9 181ff1d8fcc7",
    "ssfl/fig2": "602f0548b671 3cb0cdc55829 ff4c9b700c9c 7c5edc02c5f6",
    "ssfl/fig3": "fcad6ccb41b4 2f4772905368 072bf4060031 a9b9977dd0c9",
    "ssfl/fig4": "399ce8b61ae1 5b253c2e847d fb7e4f064a34 a21e39c82987",
    "ssfl/fig5_left": "5b41dbce09eb f68c888e4223 998579c2cb28 bba3c76db728",
    "ssfl/fig5_middle": "963788b0c7f4 5a42ae23334f 7a7034945542 f9d1ea132607",
    "ssfl/fig5_right": "850bba708d5f 27be443498b2 f4e16ceb6d7c b72371cac448",
    "ssfl/figb1": "c344a918048f ae4d38da5932 f5344d7e2406 1090d48cdb3f",
    "ssfl/figc1": "45846f6f8b27 b04027b09f8a 377233ef03dd 87e209ffb61a",
    "ssfl/fig6": "8b6139b840c5 b32c93087943 d0d2a6879985 b5d62af098ba",
    "ssfl/figd1": "8b6139b840c5 b32c93087943 d0d2a6879985 b5d62af098ba",
    "ssfl/figd2": "8b6139b840c5 b32c93087943 d0d2a6879985 b5d62af098ba",
    "ssfl/figd3": "8b6139b840c5 b32c93087943 d0d2a6879985 b5d62af098ba",
    "ssfl/figd4": "8b6139b840c5 b32c93087943 d0d2a6879985 b5d62af098ba",
    "arena/digits": "c6e6098488ff 244046485448 244046485448 244046485448",
    "arena/mnist": "15e87af215f5 15e87af215f5 15e87af215f5 15e87af215f5",
    "arena/cifar10": "7ebc37e7e964 7ebc37e7e964 8713e11dcaa8 8713e11dcaa8",
    "arena/alpha": "bfed61fe09de 9676995bdcec 9676995bdcec 9676995bdcec",
    "ssfl/departures": "aa0aebf54539 0f4b455e85b7 034fdec24055 603d96b07b00",
}
# A few of them one by one: ssfl/tabd1 at the laptop, with records in results/reference/.
TABLE_D1 = {
    "MNIST/FedAvg": "49e2c9f58c5a73fe",
    "MNIST/Grouping": "46b14de5215ca60a",
    "MNIST/Control": "769301e7dd68c644",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_labels_and_keys_stay(name):
    found = []
    for profile in PROFILES:
        cells = sorted(items([name], profile)[0].cells, key=lambda cell: cell.label)
        text = "".join(f"{cell.label}={cell.cell_key};" for cell in cells)
        found.append(hashlib.sha256(text.encode()).hexdigest()[:12])
    assert " ".join(found) == DIGESTS[name]


def test_every_item_of_ssfl_and_the_arena_is_held():
    assert set(DIGESTS) == {name for name in ITEMS if name.startswith(("ssfl/", "arena/"))}


def test_the_committed_records_are_those_of_the_items():
    (item,) = items(["ssfl/tabd1"], "laptop")
    assert {cell.label: cell.cell_key for cell in item.cells} == TABLE_D1
    assert set(TABLE_D1.values()) <= {path.name for path in (ROOT / "results" / "reference").iterdir()}
