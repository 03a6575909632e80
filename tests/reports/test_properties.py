"""Tables of properties: what the summaries of runs say, and nothing that they do not."""

from dataclasses import replace

from benchmark.methods.semifl import SemiFL
from benchmark.records.record import RunRecord, run_folder
from benchmark.records.run import run
from reports.properties import EXCHANGED, LEARNED, properties_of
from tests.conftest import record_of, tiny_experiment

STUDENT = {"student": 4}


def holder(received=STUDENT, sent=STUDENT, kept=None, views=("unlabelled/weak",)):
    return {"received": received, "sent": sent, "kept": kept or {}, "views": list(views), "trains": True}


def record(method: str, norm: str = "gn", **changes) -> RunRecord:
    exchange = {
        "training": "parallel",
        "pseudo_labels": True,
        "state": {"student": 4},
        "holders": {"server": holder(views=["labelled/weak"]), "client": holder()},
        **changes,
    }
    return RunRecord(
        cell_key="c",
        seed=0,
        experiment={"method": {"kind": method}, "model": {"norm": norm}},
        manifest={},
        result={"status": "done", "exchange": exchange},
        rounds=[],
    )


def clients(**changes):
    return {"server": holder(views=["labelled/weak"]), "client": holder(**changes)}


def of(*records):
    return properties_of(records)


def texts(found, names=EXCHANGED):
    return tuple(found[name].text for name in names)


def test_the_published_row_of_semifl_comes_from_its_run(tmp_path):
    """SemiFL Table 2: pseudo-labels, consistency, "Strong + Mixup", "Alternate", "sBN"; from a run of three rounds."""
    tiny = tiny_experiment()
    semifl = replace(tiny, method=SemiFL(threshold=0.0), model=replace(tiny.model, norm="sbn"))
    for experiment in (tiny, semifl):
        run(experiment, tmp_path)
    ssfl, found = (of(record_of(run_folder(tmp_path, experiment))) for experiment in (tiny, semifl))
    assert texts(found, LEARNED) == ("yes", "yes", "Strong + Mixup", "Alternate", "sBN")
    assert texts(ssfl, LEARNED) == ("yes", "yes", "Strong", "Parallel", "GN")
    assert found["Privacy"].below == ("clients also send count, statistics",)
