"""Where a run's record lies. Apart from what writes it, so that who only looks need not load the trainer."""

from pathlib import Path

from benchmark.experiment import Experiment


def run_folder(results: Path, experiment: Experiment) -> Path:
    return results / "runs" / experiment.cell_key / f"seed={experiment.seed}"
