"""Write all run records as Parquet files, with a data card and Croissant metadata (core and RAI fields).

Only this module needs pyarrow, which pandas uses to write Parquet: the extra `parquet`. No clock is read, so that equal
records give equal files with equal releases of both.
"""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from benchmark.data.folder import public_name
from benchmark.errors import ConfigError
from benchmark.files import cannot_write, write_atomically
from benchmark.papers.item import ACCURACY, CONFIRMING, PILOTS
from benchmark.records.collect import SETTINGS, frame_of
from benchmark.records.record import FINISHED, RunRecord
from benchmark.sharing.bundle import OURS
from reports.formatting import metric_name, unit_of
from reports.item_results import ItemResults
from reports.submissions import Submission

if TYPE_CHECKING:
    import pandas as pd

HERE = Path(__file__).parent
CITATION = HERE.parent / "CITATION.cff"
# The table that the card's two lines reproduce, if the release has it.
EXAMPLE = ("arena/mnist", "laptop")
CONFORMS = ["http://mlcommons.org/croissant/1.0", "http://mlcommons.org/croissant/RAI/1.0"]
CONTEXT: Mapping[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
TYPES = {"i": "sc:Integer", "u": "sc:Integer", "f": "sc:Float", "b": "sc:Boolean"}  # by the kind of a column's type
KEYS = {"runs": ("cell_key", "seed", "trained_by"), "rounds": (), "tables": ()}


def write_release(
    every: Sequence[ItemResults],
    records: Iterable[RunRecord],
    submissions: Sequence[Submission],
    folder: Path,
) -> list[Path]:
    """Write the release into the folder and return its files.

    `every`: the tables; `records`: all records of this suite; `submissions`: the accepted ones.
    Raise ConfigError without pyarrow, and CannotWrite.
    """
    import pandas as pd  # slow to import, and only notebooks and this module need it

    owned = [(record, OURS, False) for record in records if record.status in FINISHED]
    for sent in submissions:
        by = sent.bundle.card["by"] or "not stated"
        owned += [(record, by, f"{record.path}" in sent.retrained) for record in sent.bundle.records]
    frames = {
        "runs": pd.DataFrame([_run_row(*entry) for entry in owned]),
        "rounds": _rounds_frame(owned),
        "tables": pd.DataFrame(list(_table_rows(every)), columns=[*TABLE_COLUMNS]),
    }
    texts = tomllib.loads((HERE / "release.toml").read_text())
    paths = []
    for name, frame in frames.items():
        paths.append(_write_parquet(frame, folder / f"{name}.parquet"))
    card = card_text(texts, frames)
    metadata = croissant(texts, frames, {path.stem: path for path in paths})
    for file, text in (("README.md", card), ("croissant.json", json.dumps(metadata, indent=2) + "\n")):
        write_atomically(folder / file, text.encode())
        paths.append(folder / file)
    return paths


TABLE_COLUMNS = ("item", "table_profile", "label", "role", "cell_key", "seed", "trained_by")


def _write_parquet(frame: "pd.DataFrame", path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        frame.to_parquet(path, engine="pyarrow", index=False)
    except ImportError:
        raise ConfigError("--release needs the package pyarrow; type pip install 'fssl[parquet]'") from None
    except OSError as error:
        raise cannot_write(path, error) from None
    return path


def seed_kind(seed: int) -> str:
    """Return which seeds this one belongs to."""
    if seed in PILOTS:
        return "exploratory"
    return "confirmatory" if seed in CONFIRMING else "tuning"


def _settings(experiment: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: experiment[part].get(field) for name, (part, field) in SETTINGS.items()}
    return {**settings, "data": public_name(str(settings["data"]))}


def _run_row(record: RunRecord, by: str, again: bool) -> dict[str, Any]:
    """Return the row of a run. No path of a folder of images is in it."""
    experiment, manifest, result = record.experiment, record.manifest, record.result
    public = {**experiment, "data": {**experiment["data"], "name": public_name(str(experiment["data"]["name"]))}}
    engine, device = record.trained_by
    cost = result.get("cost", {})
    done = record.status == "done"
    return {
        "cell_key": record.cell_key,
        "seed": record.seed,
        "seed_kind": seed_kind(record.seed),
        "status": record.status,
        "profile": str(result.get("profile", experiment.get("profile", ""))),
        "trained_by": by,
        "trained_again": again,
        **_settings(experiment),
        "rounds": int(result.get("rounds", len(record.rounds))),
        "accuracy": _number(record.selected(ACCURACY)) if done else None,
        "selection": str(result.get("selection", "")),
        "bytes_up": _number(cost.get("bytes_up")),
        "bytes_down": _number(cost.get("bytes_down")),
        "local_steps": _number(cost.get("local_steps")),
        "wall_seconds": _number(result.get("wall_seconds")),
        "processor": str(manifest.get("hardware", {}).get("processor", "")),
        "device": device,
        "engine": engine,
        "torch": str(manifest.get("packages", {}).get("torch", "")),
        "commit": str(manifest.get("code", {}).get("commit", "unknown")),
        "uncommitted": bool(manifest.get("code", {}).get("changes")),
        "data_hash": str(manifest.get("data", {}).get("hash", "")),
        "partition_hash": str(manifest.get("data", {}).get("partition", "")),
        "experiment": json.dumps(public, sort_keys=True),
    }


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _rounds_frame(owned: Sequence[tuple[RunRecord, str, bool]]) -> "pd.DataFrame":
    """Return the rounds as `benchmark.load` does, with who trained the run and without paths."""
    frames = []
    for by in dict.fromkeys(by for _, by, _ in owned):
        frame = frame_of(record for record, other, _ in owned if other == by)
        frame.insert(2, "trained_by", by)
        frames.append(frame)
    import pandas as pd

    joined = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["cell_key", "seed"])
    if "data" in joined:
        joined["data"] = joined["data"].map(lambda name: public_name(str(name)))
    return joined


def _table_rows(every: Iterable[ItemResults]) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each finished run that a table counts."""
    for reported in every:
        for label, result in reported.results.items():
            for run in result.runs:
                if run.status in FINISHED:
                    cell = result.cell
                    where = (reported.item.name, reported.item.profile, label, cell.role)
                    yield (*where, cell.cell_key, run.seed, OURS)


def described(texts: Mapping[str, Any], column: str) -> str:
    """Return the meaning of a column: from release.toml, or the name of a metric."""
    if column in texts["columns"]:
        return str(texts["columns"][column])
    name, unit = metric_name(column), unit_of(column)
    if unit == "%":
        return f"{name}, a fraction"
    return f"{name} ({unit})" if unit else name


def example_lines(tables: "pd.DataFrame") -> tuple[str, str]:
    """Return two lines of pandas that reproduce a table: mean, standard deviation and number of runs per label."""
    name, profile = EXAMPLE
    if not len(tables[(tables["item"] == name) & (tables["table_profile"] == profile)]) and len(tables):
        name, profile = tables.iloc[0]["item"], tables.iloc[0]["table_profile"]
    keys = '["cell_key", "seed", "trained_by"]'
    first = f'runs = pd.read_parquet("runs.parquet").merge(pd.read_parquet("tables.parquet"), on={keys})'
    chosen = f"item == {name!r} and table_profile == {profile!r}"
    second = f'table = runs.query("{chosen}").groupby("label")["accuracy"].agg(["mean", "std", "count"])'
    return first, second


def card_text(texts: Mapping[str, Any], frames: Mapping[str, "pd.DataFrame"]) -> str:
    """Return the data card as Markdown."""
    from reports.rendering import render

    files = []
    for name, frame in frames.items():
        columns = [(column, described(texts, column)) for column in frame.columns]
        files.append({"name": name, "about": texts["files"][name], "rows": len(frame), "columns": columns})
    return render(
        "release.md",
        texts=texts,
        files=files,
        lines=example_lines(frames["tables"]),
        suite=yaml.safe_load(CITATION.read_text()) if CITATION.is_file() else {},
    )


def croissant(
    texts: Mapping[str, Any], frames: Mapping[str, "pd.DataFrame"], paths: Mapping[str, Path]
) -> dict[str, Any]:
    """Return the Croissant metadata of the files: core fields, and the fields of its vocabulary for responsible AI."""
    suite = yaml.safe_load(CITATION.read_text()) if CITATION.is_file() else {}
    files, sets = [], []
    for name, frame in frames.items():
        content = paths[name].read_bytes()
        files.append(
            {
                "@type": "cr:FileObject",
                "@id": f"{name}.parquet",
                "name": f"{name}.parquet",
                "description": texts["files"][name],
                "contentUrl": f"{name}.parquet",
                "contentSize": f"{len(content)} B",
                "encodingFormat": "application/x-parquet",
                "sha256": hashlib.sha256(content).hexdigest(),
            }
        )
        fields = [_field(texts, name, column, frame[column].dtype.kind) for column in frame.columns]
        keys = [{"@id": f"{name}/{column}"} for column in KEYS[name]]
        about = {"name": name, "description": texts["files"][name], **({"key": keys} if keys else {})}
        sets.append({"@type": "cr:RecordSet", "@id": name, **about, "field": fields})
    authors = [{"@type": "Organization", "name": author["name"]} for author in suite.get("authors", ())]
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS,
        "name": texts["name"],
        "alternateName": texts["title"],
        "description": texts["description"],
        "license": "https://www.apache.org/licenses/LICENSE-2.0",
        "url": suite.get("repository-code", "https://pypi.org/project/fssl/"),
        "version": suite.get("version", "0.0.0"),
        "datePublished": str(suite.get("date-released", "2026-01-01")),
        "creator": authors,
        "keywords": suite.get("keywords", []),
        "citeAs": _bibtex(suite),
        **{f"rai:{name}": text for name, text in texts["rai"].items()},
        "distribution": files,
        "recordSet": sets,
    }


def _field(texts: Mapping[str, Any], name: str, column: str, kind: str) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"{name}/{column}",
        "name": column,
        "description": described(texts, column),
        "dataType": TYPES.get(kind, "sc:Text"),
        "source": {"fileObject": {"@id": f"{name}.parquet"}, "extract": {"column": column}},
    }


def _bibtex(suite: Mapping[str, Any]) -> str:
    authors = " and ".join(f"{{{author['name']}}}" for author in suite.get("authors", ()))
    year = str(suite.get("date-released", ""))[:4]
    return f"@misc{{fssl, title = {{{suite.get('title', '')}}}, author = {{{authors}}}, year = {{{year}}}}}"
