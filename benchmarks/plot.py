"""Draw the panels of a result: `plot.py NAME...` reads results/NAME.json, writes results/NAME.svg.

Owns the pictures. It runs in an environment of its own (`benchmarks/requirements.lock`), imports
nothing of the project, and draws every single value, not only medians.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

RESULTS = Path(__file__).resolve().parent / "results"
COLOURS = ("#1f77b4", "#d9822b", "#8a8a8a", "#5b9e4d", "#8e6bb8")


def draw(result: dict[str, Any], out: Path) -> None:
    """Draw the result's panels side by side in one figure."""
    panels = result["panels"]
    widths = [max(2, len(panel["x"])) for panel in panels]
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(2.2 + 1.5 * sum(widths), 4.6), width_ratios=widths, squeeze=False
    )
    for panel, axis in zip(panels, axes[0], strict=True):
        if all(isinstance(place, int) for place in panel["x"]):
            _curve(panel, axis)
        else:
            _bars(panel, axis)
        axis.set_title(panel["title"], fontsize=10)
        axis.set_ylabel(panel["unit"])
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    # Above the panels: inside one it would cover bars.
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), frameon=False, fontsize=8, ncols=5,
        loc="upper center", bbox_to_anchor=(0.5, 0.955),
    )  # fmt: skip
    figure.suptitle(result["title"], fontsize=11)
    lines = [*map(_verdict, result["verdicts"]), _machine(result)]
    figure.text(0.01, 0.01, "\n".join(lines), fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.015 + 0.03 * len(lines), 1, 0.95))
    # Without the date and with fixed ids, the same result gives the same picture; text is stored as
    # text, which keeps the file small.
    matplotlib.rcParams |= {"svg.hashsalt": result["benchmark"], "svg.fonttype": "none"}
    figure.savefig(out, metadata={"Date": None})
    pyplot.close(figure)


def _verdict(verdict: dict[str, Any]) -> str:
    met = "met" if verdict["met"] else "not met"
    return f"{verdict['what']}: {verdict['value']:.3g} (goal {verdict['goal']:.3g}: {met})"


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"{machine['cpus']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, "
        f"engine {machine['engine']}, load {machine['load'][0]}, {result['started'][:10]}"
    )


def _bars(panel: dict[str, Any], axis: Any) -> None:
    """Draw groups of bars as high as the median, and each single value as a dot on its bar."""
    count = len(panel["series"])
    width = 0.8 / count
    for number, (side, values) in enumerate(panel["series"].items()):
        places = [i + (number - (count - 1) / 2) * width for i in range(len(panel["x"]))]
        heights = [statistics.median(found) if found else 0 for found in values]
        drawn = axis.bar(places, heights, width * 0.92, color=COLOURS[number], label=side)
        labels = [f"{height:.3g}" if height else "" for height in heights]
        axis.bar_label(drawn, labels=labels, fontsize=8, padding=2)
        for place, found in zip(places, values, strict=True):
            axis.plot([place] * len(found), found, ".", color="black", markersize=3)
    axis.set_xticks(range(len(panel["x"])), panel["x"])
    for place, limit in enumerate(panel["limit"]):
        if limit is not None:
            label = "goal" if place == 0 else None
            axis.hlines(limit, place - 0.42, place + 0.42, color="#c23b22", ls="--", label=label)


def _curve(panel: dict[str, Any], axis: Any) -> None:
    """Draw one line through the medians for each side, and each single value as a dot."""
    for number, (side, values) in enumerate(panel["series"].items()):
        known = [(x, found) for x, found in zip(panel["x"], values, strict=True) if found]
        medians = [statistics.median(found) for _, found in known]
        axis.plot([x for x, _ in known], medians, "-", color=COLOURS[number], label=side)
        for x, found in known:
            axis.plot([x] * len(found), found, ".", color=COLOURS[number])
    limits = [
        (x, limit) for x, limit in zip(panel["x"], panel["limit"] or [], strict=False)
        if limit is not None
    ]  # fmt: skip
    if limits:
        axis.plot(*zip(*limits, strict=True), "x", color="#c23b22", label="goal")
    axis.set_xticks(panel["x"])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        text = (RESULTS / f"{name}.json").read_text(encoding="utf-8")
        draw(json.loads(text), RESULTS / f"{name}.svg")
        print(f"drawn: {RESULTS / name}.svg")
