"""How measurements look: tables of text, the same on a terminal and in Markdown.

`written(results)` takes the JSON of `fssl bench`, whole or in part, and nothing else: pages can be made again from it.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells of text under their headings; notes stand below. Raises ValueError for a row of another length."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"{self.title}: a row of {len(row)} cells under {len(self.head)} headings")

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", _line(self.head), _line(["---"] * len(self.head))]
        lines += [_line(row) for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def written(results: Json) -> list[Table]:
    """A table for every section that was measured."""
    return [table for name, write in SECTIONS.items() if name in results for table in write(results[name], results)]


def _peaks(found: Sequence[Json], results: Json) -> list[Table]:
    rows = [(peak["what"], str(peak["threads"]), f"{peak['gflops']:.0f}") for peak in found]
    note = "Best of repeated calls. Shares of the peak below are of the fp32 convolution on all threads."
    return [Table(title="What the machine reaches", head=("work", "threads", "GFLOP/s"), rows=rows, notes=(note,))]


def _ratios(found: Mapping[str, Json], results: Json) -> list[Table]:
    return [_work(name, work, results.get("peak_gflops")) for name, work in found.items()]


def _work(name: str, work: Json, peak: float | None) -> Table:
    rows = []
    for label, row in work["contenders"].items():
        share = f"{100 * row['gflops'] / peak:.0f} %" if peak else "-"
        rows.append(
            (
                label,
                seconds(row["wall_seconds"]),
                f"{row['cpu_seconds']['median']:.2f}",
                times(row["ratio"]),
                times(row["cpu_ratio"]),
                f"{row['samples_per_second']:,.0f}",
                f"{row['gflops']:.0f}",
                share,
            )
        )
    gap = work["difference"]
    met = "within" if gap["difference"] <= max(gap["tolerance"], gap["sensitivity"]) else "NOT within"
    rounds = next(iter(work["contenders"].values()))["rounds"]
    notes = (
        f"{rounds} rounds each in turn after one to warm up; images: {work['images']}; {work['flops'] / 1e12:.3f} "
        f"TFLOP and {work['samples']:,} trained samples a round, every sample confident. Ratios are paired, above 1: "
        f"faster than the {work['yardstick']}.",
        f"Against the reference engine, one round of two clients: weights differ by at most {gap['difference']:.1e} "
        f"({met} {gap['tolerance']:g}, or what the reference differs by from itself after a start that is off by "
        f"1e-7: {gap['sensitivity']:.1e}), where they moved by up to {gap['change']:.1e}.",
    )
    head = ("", "s a round", "CPU-s", "ratio", "CPU ratio", "samples/s", "GFLOP/s", "of peak")
    return Table(title=f"Work {name}: {work['what']}", head=head, rows=rows, notes=notes)


def _learning(found: Json, results: Json) -> list[Table]:
    compared = [row for row in found["rows"] if "dense_seconds" in row]
    rows = [
        (
            str(row["round"]),
            f"{row['kept']:.3f}",
            f"{row['seconds']:.2f}",
            f"{row['dense_seconds']:.2f}",
            f"{row['dense_seconds'] / row['seconds']:.2f}",
            f"{row['dense_cpu'] / row['cpu']:.2f}",
        )
        for row in compared
    ]
    whole = sum(row["seconds"] for row in found["rows"])
    saved = statistics.median(row["cpu"] / row["dense_cpu"] for row in compared)
    kept = statistics.mean(row["kept"] for row in found["rows"])
    notes = (
        f"{found['what']}, on {found['images']}; dense rounds are run on the same weights. All {len(found['rows'])} "
        f"rounds took {whole:.0f} s; {100 * kept:.0f} % were kept on average; the median round took {saved:.2f} of the "
        f"dense one's CPU time; test accuracy after them {100 * found['accuracy']:.1f} %.",
    )
    head = ("round", "share kept", "s confident-only", "s dense", "ratio", "CPU ratio")
    return [Table(title="Confident-only in a run that learns", head=head, rows=rows, notes=notes)]


def _cost(found: Json, results: Json) -> list[Table]:
    rows = [
        (
            str(row["C"]),
            seconds(row["wall_seconds"]),
            f"{row['fitted']:.2f}",
            f"{100 * row['error']:+.1f} %",
            verdict(abs(row["error"]) <= 0.1),
        )
        for row in found["rows"]
    ]
    note = f"Fit: {found['a']:.3f} + {found['b']:.3f} ceil((C + 1) / {found['workers']}) seconds; wanted within 10 %."
    return [Table(title="Cost over C, work A", head=("C", "s a round", "fit", "error", ""), rows=rows, notes=(note,))]


def _memory(found: Json, results: Json) -> list[Table]:
    rows = [
        (
            f"{row['K']:,}",
            str(row["C"]),
            row["network"],
            gib(row["data_bytes"]),
            gib(row["over_data_bytes"]),
            verdict(row["over_data_bytes"] <= row["bound_bytes"]),
            f"{row['import_seconds']:.1f}",
            f"{row['start_seconds']:.1f}",
            f"{row['round_seconds']:.1f}",
        )
        for row in found["rows"]
    ]
    head = ("K", "C", "network", "data GiB", "over it, peak GiB", "", "s to import", "s to start", "s a round")
    notes = (
        "Proportional set size of the run and its workers, sampled; wanted below 2 GiB over the data. To start: from a "
        "new process to the first round, imports included; the first round includes the workers' own start.",
    )
    return [Table(title="Memory and start", head=head, rows=rows, notes=notes)]


SECTIONS: Mapping[str, Callable[[Any, Json], list[Table]]] = {
    "peaks": _peaks,
    "ratios": _ratios,
    "learning": _learning,
    "cost": _cost,
    "memory": _memory,
}


def seconds(found: Json) -> str:
    """Median and spread: 3.80 (3.74..3.99)."""
    return f"{found['median']:.2f} ({found['least']:.2f}..{found['most']:.2f})"


def spread(found: Json) -> str:
    return f"{found['median']:.3f} ({found['least']:.3f}..{found['most']:.3f})"


def times(found: Json) -> str:
    """A ratio: 2.08x (1.95..2.10)."""
    return f"{found['median']:.2f}x ({found['least']:.2f}..{found['most']:.2f})"


def verdict(met: bool) -> str:
    return "met" if met else "NOT met"


def gib(count: float) -> str:
    return f"{count / 2**30:.2f}"
