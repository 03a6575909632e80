"""The final weights for use elsewhere: `weights/<model>.pt`, a plain state dict each, and a model card beside them.

The card's code is run by a test: it gives the accuracy that the card states.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmark.errors import CannotWrite
from benchmark.experiment import Experiment, to_json
from benchmark.federated.environment import Environment
from benchmark.federated.module import FederatedModule
from benchmark.records.files import write_atomically
from benchmark.records.provenance import commit

FOLDER = "weights"


def export(
    folder: Path, module: FederatedModule, last: Mapping[str, float], best: Mapping[str, Any] | None
) -> list[Path]:
    """Write every model that the method names, and README.md; the paths of the weights, the evaluated model first.

    `last`: the latest value of every metric; `best`: the best evaluated round. Raises CannotWrite.
    """
    paths = []
    for name, weights in module.models().items():
        buffer = io.BytesIO()
        # A copy in plain order: who loads it need not know that training is channels last.
        torch.save({tensor: value.contiguous().clone() for tensor, value in weights.items()}, buffer)
        paths.append(folder / FOLDER / f"{_safe(name)}.pt")
        write_atomically(paths[-1], buffer.getbuffer())
    text = card(module.environment, paths, module.rounds_done, last, best)
    write_atomically(folder / FOLDER / "README.md", text.encode())
    return paths


def card(
    environment: Environment,
    paths: list[Path],
    rounds: int,
    last: Mapping[str, float],
    best: Mapping[str, Any] | None,
) -> str:
    """The model card as Markdown: what it is, how it was trained, how good it is, how to load it."""
    experiment, data = environment.experiment, environment.data
    plain = to_json(experiment)
    channels, rows, columns = data.image_shape
    files = ", ".join(f"`{path.name}`" for path in paths)
    evaluated = "validation" if experiment.evaluation.validation else "test"
    commit_name = commit()["commit"]
    settings = {name: plain[name] for name in ("method", "data", "partition", "federation", "optimizer")}
    for name in ("data", "federation", "optimizer"):
        settings[name].pop("kind")  # there is but one
    lines = [
        f"# {plain['model']['network']}, trained on {data.name} with {plain['method']['kind']}",
        "",
        f"Classifies {channels} x {rows} x {columns} images into {data.num_classes} classes "
        f"({', '.join(data.classes[:10])}{', ...' if len(data.classes) > 10 else ''}). Weights: {files}.",
        *([f"Data: {data.note}."] if data.note else []),
        "",
        "## Accuracy",
        "",
        f"`{paths[0].name}` after the last round ({rounds}), on the {evaluated} set:",
        "",
        *_numbers(last, evaluated),
        *_best(experiment, best, evaluated),
        "",
        "## Training",
        "",
        f"{rounds} rounds of federated semi-supervised learning, labels at: {experiment.data.label_setting}; "
        f"profile {experiment.profile}, seed {experiment.seed}, cell {experiment.cell_key}, code {commit_name}.",
        "",
        *(f"- {name}: {_settings(value)}" for name, value in settings.items()),
        "",
        "All settings: `experiment.json`; all rounds: `rounds.jsonl`, in the folder above.",
        "",
        "## Use",
        "",
        "In this folder, with the package installed. Images are float32 in 0..1, N x C x H x W; logits come out.",
        "",
        "```python",
        "import json, torch",
        "from benchmark.experiment import from_json",
        "from benchmark.models.build import build",
        "",
        'model = from_json(json.load(open("../experiment.json"))).model',
        f"network = build(model, {data.image_shape}, {data.num_classes}, seed=0).eval()",
        f'network.load_state_dict(torch.load("{paths[0].name}", weights_only=True))',
        f"mean, std = torch.tensor({list(data.mean)}), torch.tensor({list(data.std)})",
        "classify = lambda images: network((images - mean[:, None, None]) / std[:, None, None])",
        "```",
    ]
    return "\n".join(lines) + "\n"


def _numbers(metrics: Mapping[str, float], prefix: str) -> list[str]:
    return [f"- {name}: {value:.4f}" for name, value in sorted(metrics.items()) if name.startswith(f"{prefix}/")]


def _best(experiment: Experiment, best: Mapping[str, Any] | None, prefix: str) -> list[str]:
    if best is None:
        return []
    note = "chosen on the test set" if prefix == "test" else "chosen on held-out labels"
    counts = "" if experiment.evaluation.selection == "last" else ", the number that this run is reported with"
    value = best[f"{prefix}/accuracy"]
    return [
        "",
        f"The best round was {best['round']} with accuracy {value:.4f} ({note}{counts}); its weights are not here.",
    ]


def _settings(table: Mapping[str, Any]) -> str:
    """One line; of a setting that has settings of its own only its kind."""
    short = {key: value.get("kind") if isinstance(value, Mapping) else value for key, value in table.items()}
    return ", ".join(f"{key} {value}" for key, value in short.items())


def _safe(name: str) -> str:
    """A method's name for its model as a file name. Raises CannotWrite for one that would lead elsewhere."""
    if not name or name.startswith(".") or Path(name).name != name:
        raise CannotWrite(f"model {name!r}: a method named it, but it cannot be a file's name; use letters and digits")
    return name
