"""Draws the JSON of hetcomm_bench with matplotlib: medians by size, box plots of a resharding, or pipelines by delay.

Medians by size have one panel for each test with logarithmic axes, and one line for each implementation, transport
and setting. The colour shows the implementation, the dashes the transport, and the marker the setting. hetcomm's
lines are thick. panels_of() and looks_of() decide without matplotlib what is drawn.
"""

import json
import os
from dataclasses import dataclass, field

TITLES = {
    "latency": "Latency, one way",
    "post_latency": "Post behind a stream that is held back",
    "pointer_latency": "Finding a plain pointer, 1000 times",
    "bandwidth": "Bandwidth",
    "bibandwidth": "Bandwidth, both directions",
    "msgrate": "Message rate, all pairs",
    "overlap": "Transfer to a computing receiver",
    "staging": "Device memory, staged",
    "staged_allreduce": "Allreduce of device memory, staged",
    "staged_allgather": "Allgather of device memory, staged",
    "put_latency": "Put, polled in memory, one way",
    "put_bandwidth": "Put",
    "put_notify_latency": "Notified put, one way",
    "put_notify_bandwidth": "Notified put",
    "get_latency": "Get, whole operation",
    "get_bandwidth": "Get",
    "fetch_add_latency": "Fetch and add, whole operation",
    "fetch_add_rate": "Fetch and add, several at once",
}
# Colours that most colour-blind readers can also distinguish.
COLOURS = {"hetcomm": "#c1272d", "ucx": "#0072b2", "openmpi": "#e69f00", "mpich": "#009e73", "intelmpi": "#56b4e9",
           "gloo": "#7a3e9d", "iperf3": "#8c564b", "memcpy": "#444444", "perftest": "#b0a000"}
OTHER_COLOURS = ("#d65f9e", "#5f7f00", "#00798c", "#a05a2c")
# Colours of settings, if only one implementation is drawn. The first setting has the
# implementation's colour.
SETTING_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#7a3e9d", "#56b4e9", "#8c564b", "#444444", "#b0a000")
DASHES = {"tcp": (0, (6, 3)), "rdma": (0, (1.5, 3))}
MARKERS = ("o", "D", "s", "^")
RATES = ("msgrate", "fetch_add_rate")


@dataclass
class Series:
    """A line of a panel: one implementation over one transport in one setting."""
    name: str
    implementation: str
    setting: str
    transport: str
    spots: list = field(default_factory=list)  # pairs of size and value

    def ours(self):
        return self.implementation == "hetcomm"


@dataclass
class Panel:
    test: str
    title: str
    unit: str
    series: list = field(default_factory=list)


def size_text(size):
    for shift, letter in ((30, "G"), (20, "M"), (10, "K")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift}{letter}"
    return str(size)


def implementation_of(name):
    """Returns only the name of the library, such as "openmpi" for "openmpi-5.0.11/no-cma"."""
    base = name.partition("/")[0]
    words = base.split("-")
    kept = next((i for i, word in enumerate(words) if i > 0 and word[:1].isdigit()), len(words))
    return "-".join(words[:kept])


def setting_of(row):
    """Returns how a row differs from other rows of its implementation and transport. Usually this
    is ""."""
    variant = row["impl"].partition("/")[2]
    ours = row["impl"] == "hetcomm"
    parts = [variant if variant != row["transport"] else "",
             f"progress {row['progress']}" if row["progress"] else "",
             f"{row['rails']} rails" if ours and row["rails"] else "",
             row["algorithm"] if ours else "",
             row["staging_memory"] if ours else "",
             f"chunk {size_text(row['chunk'])}" if row["chunk"] else "",
             f"depth {row['depth']}" if row["depth"] else "",
             row["memory"] if row["memory"] != "host" else ""]
    return ", ".join(filter(None, parts))


def name_of(row):
    setting = setting_of(row)
    # Drops the part after "/", as in "openmpi-5.0.11/no-cma", since it is part of the setting.
    name = row["impl"].partition("/")[0]
    if row["transport"] not in row["impl"] or "/" in row["impl"]:
        name += f" {row['transport']}"
    return f"{name}, {setting}" if setting else name


def is_time(test):
    return test not in RATES and "bandwidth" not in test and not test.startswith("stag")


def median_of_messages(row):
    """Returns the median of a row as a time or a rate, depending on the test, or None if no median
    was measured."""
    if not row["p50_us"] or is_time(row["test"]):
        return row["p50_us"] or None
    if row["messages_per_s"] is None or row["avg_us"] is None:
        return None
    # p50_us is a message's share of the median window. Each sender sends a message in this time.
    senders = round(row["messages_per_s"] * 1e-6 * row["avg_us"])
    per_us = senders / row["p50_us"]
    return per_us if row["test"] in RATES else per_us * row["bytes"]


def average(row):
    """Returns the average of a row, or None if it was not measured."""
    if row["test"] in RATES:
        return None if row["messages_per_s"] is None else row["messages_per_s"] * 1e-6
    if row["test"] == "overlap":
        return row["p50_us"]
    return row["avg_us"] if is_time(row["test"]) else row["bandwidth_MBps"]


def unit_of(test, rounds):
    unit = ("millions per second" if test in RATES
            else "microseconds" if is_time(test) else "MB/s (10^6 bytes)")
    of = f"{rounds} rounds" if rounds else "single messages" if is_time(test) else "windows"
    return f"{unit}, median of {of}"


def make_series(rows, rounds):
    first = rows[0]
    series = Series(name_of(first), implementation_of(first["impl"]), setting_of(first), first["transport"])
    has_medians = all(median_of_messages(row) is not None for row in rows)
    if not rounds and not has_medians:
        series.name += " (average)"
    # The rows of a comparison come from the median round, so their averages are drawn.
    value = average if rounds or not has_medians else median_of_messages
    for row in rows:
        # Zero has no logarithm.
        if row["bytes"] > 0 and (value(row) or 0) > 0:
            series.spots.append((row["bytes"], value(row)))
    return series


def panels_of(document):
    rounds = document["meta"].get("comparison", {}).get("rounds", 0)
    lines, panels = {}, {}
    for row in document["rows"]:
        lines.setdefault((row["test"], row["impl"], name_of(row)), []).append(row)
    for (test, _, _), rows in lines.items():
        series = make_series(rows, rounds)
        if series.spots:
            title = TITLES.get(test, test.replace("_", " ").capitalize())
            panels.setdefault(test, Panel(test, title, unit_of(test, rounds))).series.append(series)
    return list(panels.values())


def colour_of(series, panels):
    """Returns the colour of the series' implementation, which is the same in every picture. If only
    one implementation is drawn, each of its settings has a separate colour."""
    drawn = [each for panel in panels for each in panel.series]
    settings = list(dict.fromkeys(each.setting for each in drawn))
    others = list(dict.fromkeys(each.implementation for each in drawn if each.implementation not in COLOURS))
    setting = settings.index(series.setting)
    if setting > 0 and all(each.implementation == series.implementation for each in drawn):
        return SETTING_COLOURS[(setting - 1) % len(SETTING_COLOURS)]
    if series.implementation in COLOURS:
        return COLOURS[series.implementation]
    return OTHER_COLOURS[others.index(series.implementation) % len(OTHER_COLOURS)]


def looks_of(panels):
    """Maps the name of each series to its colour and marker, which are the same in all panels. Series of one
    colour and transport have different markers."""
    looks, taken = {}, {}
    for panel in panels:
        for series in panel.series:
            if series.name not in looks:
                key = (colour_of(series, panels), DASHES.get(series.transport))
                taken[key] = taken.get(key, -1) + 1
                looks[series.name] = (key[0], MARKERS[taken[key] % len(MARKERS)])
    return looks


# --- drawing ---------------------------------------------------------------------------------------

def draw_panel(axes, panel, looks):
    # hetcomm is drawn last, on top.
    for series in sorted(panel.series, key=Series.ours):
        colour, marker = looks[series.name]
        line, = axes.loglog(*zip(*series.spots), color=colour, marker=marker, label=series.name,
                            linestyle=DASHES.get(series.transport, "-"), linewidth=2.4 if series.ours() else 1.2,
                            markersize=5 if series.ours() else 4)
        line.set_gid(f"{panel.test} {series.name}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size, _: size_text(round(size)))
    axes.set_title(panel.title, loc="left", fontweight="bold")
    axes.set_xlabel("message size, bytes")
    axes.set_ylabel(panel.unit)
    axes.grid(which="both", color="#e3e3e3", linewidth=0.6)


def by_size(document):
    from matplotlib.figure import Figure
    panels = panels_of(document)
    looks = looks_of(panels)
    lines = -(-len(looks) // max(len(panels), 1))
    height = 5 + 0.25 * lines
    figure = Figure(figsize=(0.8 + 5.6 * max(len(panels), 1), height), layout="constrained")
    # The legend is below the panels.
    below = 0.25 * lines / height
    figure.get_layout_engine().set(rect=(0, below, 1, 1 - below))
    meta = document["meta"]
    figure.suptitle(f"hetcomm_bench {meta['version']} on {meta['host']}", color="#555555", fontsize=10)
    grid = figure.subplots(1, max(len(panels), 1), squeeze=False)[0]
    for axes, panel in zip(grid, panels):
        draw_panel(axes, panel, looks)
    handles = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels())}
    if handles:
        figure.legend([handles[name] for name in looks], list(looks), loc="lower left", frameon=False,
                      ncols=max(len(panels), 1))
    return figure


def box_plots(rows):
    from matplotlib.figure import Figure
    cases = {}
    for row in rows:
        cases.setdefault(", ".join(filter(None, (row.get("scenario"), row["layouts"]))), []).append(row)
    heights = [1 + len(each) for each in cases.values()]
    figure = Figure(figsize=(8, 0.6 + 0.3 * sum(heights)), layout="constrained")
    figure.suptitle("times of resharding by strategy: median, quartiles, fastest and slowest; diamond: forecast",
                    color="#555555", fontsize=10)
    grid = figure.subplots(max(len(cases), 1), 1, squeeze=False, height_ratios=heights or None)
    for axes, (name, entries) in zip(grid[:, 0], cases.items()):
        axes.set_title(name, loc="left", fontweight="bold", fontsize=10)
        for place, row in enumerate(entries):
            if "refused" in row:
                axes.annotate("not covered", (0.01, place), xycoords=("axes fraction", "data"), va="center",
                              color="#888888", fontsize=8)
                continue
            colour = "#c0392b" if row["strategy"] == "auto" else "#5b7fa6"
            axes.hlines(place, row["fastest_us"], row["slowest_us"], color=colour)
            axes.barh(place, row["high_us"] - row["low_us"], 0.55, row["low_us"], color=colour, alpha=0.35)
            median, = axes.plot([row["median_us"]] * 2, [place - 0.27, place + 0.27], color=colour, linewidth=2)
            median.set_gid(f"{name} {row['strategy']}")
            if (row["forecast_us"] or 0) > 0:
                axes.plot(row["forecast_us"], place, "D", color="#333333", markersize=4)
            axes.annotate(f"{row['median_us']:.0f} us", (1.01, place), xycoords=("axes fraction", "data"), va="center",
                          color="#444444", fontsize=8)
        axes.set_yticks(range(len(entries)), [row["strategy"] for row in entries], fontsize=8)
        axes.set_ylim(len(entries) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.tick_params(axis="x", labelsize=8)
    return figure


def pipelines(rows):
    """Draws the times of a micro-batch by delay, with a panel for each rate of the links. Without links, draws bars
    by schedule."""
    from matplotlib.figure import Figure
    rates = list(dict.fromkeys(row.get("rate_mbit", 0) for row in rows))
    schedules = list(dict.fromkeys(row["schedule"] for row in rows))
    colours = dict(zip(schedules, SETTING_COLOURS * len(schedules)))
    figure = Figure(figsize=(1 + 5.6 * len(rates), 5), layout="constrained")
    has_links = "delay_ms" in rows[0]
    has_torch = any("torch over gloo" in row.get("torch_us", {}) for row in rows)
    dotted = "; dotted: torch's own pipelining over Gloo" if has_torch and has_links else ""
    figure.suptitle(f"time of a micro-batch; dashed: forecast{dotted}", color="#555555", fontsize=10)
    for axes, rate in zip(figure.subplots(1, len(rates), squeeze=False, sharey=True)[0], rates):
        own = [row for row in rows if row.get("rate_mbit", 0) == rate]
        if has_links:
            draw_delays(axes, own, colours)
            axes.set_title(f"{rate} Mbit/s" if rate else "links without a limit of rate", loc="left", fontweight="bold")
            axes.set_xlabel("delay of the link in each direction, ms")
        else:
            draw_schedules(axes, own, colours)
        axes.set_ylabel("ms")
        axes.set_ylim(bottom=0)
        axes.grid(color="#e3e3e3", linewidth=0.6)
        axes.set_axisbelow(True)
        if has_links:
            axes.legend(frameon=False, fontsize=8)
    return figure


def draw_delays(axes, rows, colours):
    for schedule, colour in colours.items():
        own = sorted((row for row in rows if row["schedule"] == schedule), key=lambda row: row["delay_ms"])
        delays = [row["delay_ms"] for row in own]
        line, = axes.plot(delays, [row["measured_us"] / 1e3 for row in own], color=colour, marker="o", label=schedule)
        line.set_gid(f"{schedule} measured")
        axes.plot(delays, [row["forecast_us"] / 1e3 for row in own], color=colour, linestyle=(0, (5, 3)), linewidth=1)
        torch = [(row["delay_ms"], row["torch_us"]["torch over gloo"] / 1e3) for row in own
                 if "torch over gloo" in row.get("torch_us", {})]
        if torch:
            axes.plot(*zip(*torch), color=colour, linestyle=(0, (1, 2)), marker="x")


def draw_schedules(axes, rows, colours):
    own = "measured, in C"  # the executor alone
    names = [own, *dict.fromkeys(name for row in rows for name in row.get("torch_us", {}))]
    width = 0.8 / len(names)
    for place, row in enumerate(rows):
        times = {own: row["measured_us"], **row.get("torch_us", {})}
        for number, name in enumerate(names):
            if name not in times:
                continue
            at = place + (number - (len(names) - 1) / 2) * width
            bar, = axes.bar(at, times[name] / 1e3, width * 0.9, color=colours[row["schedule"]],
                            alpha=1 / (1 + 0.6 * number), label=name if place == 0 else None)
            bar.set_gid(f"{row['schedule']} {name.partition(',')[0]}")
        axes.hlines(row["forecast_us"] / 1e3, place - 0.45, place + 0.45, color="#333333", linestyle=(0, (5, 3)))
    axes.set_xticks(range(len(rows)), [row["schedule"] for row in rows], fontsize=8)
    if len(names) > 1:
        axes.legend(frameon=False, fontsize=8)


def list_figure(rows):
    """Returns the picture for a test that measures a job."""
    return pipelines(rows) if rows and rows[0].get("test") == "pipeline" else box_plots(rows)


def draw(source, path):
    import matplotlib
    document = json.load(source)
    kind = os.path.splitext(path)[1][1:].lower()
    # Keeps text as text in an SVG, and makes equal data produce equal files.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "hetcomm"}):
        figure = list_figure(document) if isinstance(document, list) else by_size(document)
        kind = kind if kind in ("png", "pdf") else "svg"
        undated = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[kind]
        figure.savefig(path, format=kind, metadata=undated)
    return 0
