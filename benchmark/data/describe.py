"""What a split looks like, as JSON values and as a picture.

For `fssl data partition`. Shapes: K clients, d classes.
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmark.data.split import Labels, Split, mean_total_variation
from benchmark.data.tables import IntArray
from benchmark.errors import CannotWrite, ConfigError

MAX_LEGEND = 20  # classes; with more, a colour bar of class numbers


def describe(split: Split, labels_N: Labels) -> dict[str, Any]:
    """The split as JSON values. K, R_nominal (None where a rule has none), R_realised (Eq. 2), counts (K x d),
    server_counts (the labelled images that the server trains on, without validation images), hash; and labelled_counts
    (K x d) where clients have labelled images of their own, which `counts` leaves out."""
    counts_Kd = split.counts(labels_N)
    described = {
        "K": len(split.clients),
        "R_nominal": split.partition.R_nominal,
        "R_realised": mean_total_variation(counts_Kd),
        "counts": counts_Kd.tolist(),
        "server_counts": split.server_counts(labels_N).tolist(),
        "hash": split.hash(),
    }
    if split.labelled:
        described["labelled_counts"] = split.labelled_counts(labels_N).tolist()
    return described


def plot(split: Split, labels_N: Labels, classes: tuple[str, ...], path: Path) -> None:
    """Write an SVG, PDF or PNG with stacked bars of class counts, one for the server and one for each client.

    The same split gives the same bytes. Raises ConfigError for another suffix or for names that do not fit the classes,
    CannotWrite where no file can be written to the path."""
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": None}
    if path.suffix not in dates:
        raise ConfigError(f"plot {path}: suffix {path.suffix!r} must be .svg, .pdf or .png")
    if len(classes) != split.num_classes:
        raise ConfigError(f"plot: {len(classes)} class names for {split.num_classes} classes: give one a class")
    # Without a fixed salt and date, matplotlib writes other bytes each time.
    with rc_context({"svg.hashsalt": "fssl", "svg.fonttype": "none"}):
        figure = _figure(split, labels_N, classes)
        try:
            figure.savefig(path, dpi=120, metadata=dates[path.suffix])
        except OSError as error:
            raise CannotWrite(f"plot {path} cannot be written ({error.strerror}): name a folder that exists") from error


def _figure(split: Split, labels_N: Labels, classes: tuple[str, ...]) -> Figure:
    counts_Kd, server_1d = split.counts(labels_N), split.server_counts(labels_N)[None]
    K, d = counts_Kd.shape
    few = d <= MAX_LEGEND  # distinct colours and a legend, else a ramp and a colour bar
    ramp = colormaps["turbo"]
    colours = list(colormaps["tab10" if d <= 10 else "tab20"](range(d))) if few else list(ramp(np.linspace(0, 1, d)))
    figure = Figure(figsize=(9, 4), layout="constrained")
    # Two scales: the server's few labels would be invisible next to the clients' images, or the other way round.
    server_axes, client_axes = figure.subplots(1, 2, width_ratios=[1, 10])
    _stack(server_axes, server_1d, colours)
    _stack(client_axes, counts_Kd, colours)
    server_axes.set(xticks=[], xlabel="server", ylabel="labelled images")
    client_axes.set(xlabel="client", ylabel="images")
    nominal = split.partition.R_nominal
    title = f"K = {K}, realised R = {mean_total_variation(counts_Kd):.3f}"
    client_axes.set_title(title if nominal is None else f"{title} (nominal {nominal:g})")
    if few:
        handles = client_axes.collections[:d]
        figure.legend(handles, classes, loc="outside right upper", title="class", fontsize="small", reverse=True)
    else:
        figure.colorbar(ScalarMappable(Normalize(0, d - 1), ramp), ax=client_axes, label="class number")
    return figure


def _stack(axes: Axes, counts_Kd: IntArray, colours: list[Any]) -> None:
    """Bars as steps of one area a class. So hundreds of clients by dozens of classes are drawn in a second."""
    K, most = len(counts_Kd), int(counts_Kd.sum(axis=1).max())
    edges = np.arange(K + 1) - 0.5
    axes.stackplot(edges, np.vstack([counts_Kd, counts_Kd[-1:]]).T, step="post", colors=colours)
    if K <= 100:  # gaps under a pixel would come and go
        axes.vlines(edges, 0, most, colors="white", linewidth=2)
    axes.set(xlim=(-0.5, K - 0.5), ylim=(0, max(most * 1.05, 1.0)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
