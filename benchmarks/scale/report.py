"""The tables of ``results/scale``, and the model's answer for a billion rows. ``docs/scale.md`` includes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.results import Row, latest, markdown_table, read_rows
from benchmarks.scale.model import PARTS, Constants, Iteration, Machine, iteration
from benchmarks.scale.simulate import Troubles, simulate

BILLION, MILLION, WIDTH = 1_000_000_000, 1_000_000, 128
SIZES = (10, 100, 1_000)  # machines
ITERATIONS = 25  # of a fit
REPLAYED_TASKS = 800_000  # fifty iterations of a thousand machines: failures are rare where there are few
FEWER_PARTITIONS = (1, 2, 4, 8, 16, 32, 64)  # times fewer than cores
TROUBLES = {
    "undisturbed": Troubles(),
    "5 % of machines 3× slower": Troubles(slow_share=0.05),
    "each machine fails daily": Troubles(hours_between_failures=24),
    "both": Troubles(slow_share=0.05, hours_between_failures=24),
}

Rows = dict[str, list[Row]]  # by command


def write(folder: Path, commands: Iterable[str], suffix: str) -> str:
    """Write the report beside the results of all commands, the names of which end in ``suffix``."""
    rows = {name: read_rows(folder / f"{name}{suffix}.jsonl") for name in commands}
    missing = [name for name, found in rows.items() if not found]
    if missing:
        raise SystemExit(f"'{folder}' must have results of all commands, but has none of {', '.join(missing)}")
    parts = ["# Beyond one machine"]
    for title, section in SECTIONS.items():
        parts += [f"## {title}", section(rows)]
    machine = rows["quality"][-1]["machine"]
    parts += ["## Machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:g} GB."]
    text = "\n\n".join(parts) + "\n"
    (folder / f"README{suffix}.md").write_text(text)
    return text


def by_partitions(rows: list[Row]) -> list[Row]:
    kept = latest(rows, lambda row: (row["partitions"], row["n_clusters"], row["workers"]))
    return sorted(kept, key=lambda row: (row["n_clusters"], row["partitions"], -row["workers"]))


def on_clusters(rows: Rows) -> list[Row]:
    """The runs of quality that had a cluster."""
    return [row for row in by_partitions(rows["quality"]) if row["partitions"] > 0]


# -- runs --------------------------------------------------------------------------------------------------------------


def quality_table(rows: Rows) -> str:
    found = by_partitions(rows["quality"])
    one = next(row for row in found if row["partitions"] == 0)
    lines = [
        [
            "one machine" if row is one else str(row["partitions"]),
            "" if row is one else str(row["workers"]),
            str(row["iterations"]),
            f"{row['distortion']:,.1f}",
            f"{row['distortion'] / one['distortion'] - 1:+.2%}",
            f"{row['exact_distortion'] / one['exact_distortion'] - 1:+.2%}",
            f"{row['accuracy']:.1%}",
            row["digest"],
        ]
        for row in found
    ]
    header = (
        *("partitions", "workers", "iterations", "distortion", "against one machine"),
        *("exactly assigned, against one machine", "accuracy", "digest"),
    )
    title = f"{one['n_rows']:,} x {WIDTH} SIFT descriptors into {one['n_clusters']:,} clusters"
    return f"{title}; equal digests mean equal bytes of centres and labels.\n\n{markdown_table(header, lines)}"


def bytes_table(rows: Rows) -> str:
    lines = [
        [
            str(row["partitions"]),
            str(row["workers"]),
            f"{row['replicas']:.2f}",
            f"{row['entered']:.2f}",
            f"{expected.wire_bytes / 1e6:.1f}",
            f"{row['wire_bytes_in_the_end'] / 1e6:.1f}",
            f"{row['wire_bytes_in_the_end'] / expected.wire_bytes:.2f}",
            f"{row['centers_bytes'] / 1e6:.1f}",
        ]
        for row, expected in beside_the_model(rows)
    ]
    return markdown_table(
        (
            *("partitions", "workers", "partitions with points of a cluster", "partitions that receive a centre"),
            *("predicted, MB", "measured, MB", "measured / predicted", "file of centres, MB"),
        ),
        lines,
    )


def entered_table(rows: Rows) -> str:
    found = latest(rows["entered"], lambda row: (row["n_cells"],))
    one = next(row for row in found if row["n_cells"] == 0)
    lines = [
        [str(row["n_cells"]), f"{row['distortion']:,.1f}", f"{row['distortion'] / one['distortion'] - 1:+.2%}"]
        for row in found
        if row is not one
    ]
    title = f"{one['n_rows']:,} rows into {one['n_clusters']:,} clusters, {one['partitions']} partitions"
    return f"{title}.\n\n{markdown_table(('nearest pieces', 'distortion', 'against one machine'), lines)}"


def rival_table(rows: Rows) -> str:
    lines = [
        [
            row["method"],
            f"{row['n_clusters']:,}",
            f"{row['seconds']:.1f}" if "seconds" in row else "–",
            str(row["iterations"]),
            f"{row['exact_distortion']:,.1f}",
        ]
        for row in latest(rows["rival"], lambda row: (row["method"], row["n_clusters"]))
    ]
    workers, n_rows = (rows["rival"][-1][name] for name in ("workers", "n_rows"))
    header = ("method", "clusters", "seconds", "iterations", "distortion")
    return f"{n_rows:,} rows in float32 on {workers} workers.\n\n{markdown_table(header, lines)}"


def kills_table(rows: Rows) -> str:
    lines = [
        [row["killed"], str(row["n_kills"]), str(row["n_same"])]
        for row in latest(rows["kills"], lambda row: (row["killed"],))
    ]
    return markdown_table(("killed process", "fits", "fits with identical results"), lines)


# -- the model ---------------------------------------------------------------------------------------------------------


def constants_of(rows: Rows, n_points: int, n_clusters: int, n_partitions: int) -> Constants:
    """The constants as measured at the nearest number of points a cluster, and of clusters a partition."""
    tasks = nearest(rows["costs"], lambda row: row["n_rows"] / row["n_clusters"], n_points / n_clusters, what="tasks")
    (spread, *_) = nearest(
        rows["replicas"], lambda row: row["n_clusters"] / row["partitions"], n_clusters / n_partitions
    )
    driver, cluster = (measured(rows, what) for what in ("driver", "cluster"))
    return Constants(
        assign=max(row["assign"] for row in tasks),
        slowest=max(row["assign_slowest"] / row["assign"] for row in tasks),
        candidates=max(row["candidates"] for row in tasks),
        **{name: driver[name] for name in ("add", "near", "group", "finish")},
        **{name: cluster[name] for name in ("task", "move", "start", "write", "remove")},
        **{name: spread[name] for name in ("replicas", "merged", "entered")},
    )


def nearest(rows: list[Row], ratio: Callable[[Row], float], wanted: float, **kind: str) -> list[Row]:
    """The rows of a kind whose ratio is nearest to the one wanted; those of most partitions first."""
    chosen = [row for row in rows if row.items() >= kind.items()]
    distances = [round(abs(math.log(ratio(row) / wanted)), 2) for row in chosen]
    found = [row for row, distance in zip(chosen, distances, strict=True) if distance == min(distances)]
    return sorted(found, key=lambda row: -row["partitions"])


def measured(rows: Rows, what: str) -> Row:
    return next(row for row in reversed(rows["costs"]) if row["what"] == what)


def beside_the_model(rows: Rows) -> list[tuple[Row, Iteration]]:
    """The runs, and what the model expects of them. What a byte takes on this machine is in the constants."""
    storage = measured(rows, "cluster")["storage"]
    pairs = []
    for row in on_clusters(rows):
        constants = constants_of(rows, row["n_rows"], row["n_clusters"], row["partitions"])
        constants = replace(constants, **{name: row[name] for name in ("replicas", "merged", "entered")})
        machine = Machine(cores=row["workers"], network=math.inf, storage=storage)
        sizes = (row["n_rows"], WIDTH, row["n_clusters"])
        pairs.append((row, iteration(*sizes, 1, constants, machine, n_partitions=row["partitions"])))
    return pairs


def constants_table(rows: Rows) -> str:
    run = on_clusters(rows)[-1]
    few = constants_of(rows, run["n_rows"], run["n_clusters"], run["partitions"])
    many = constants_of(rows, BILLION, MILLION, MILLION)
    lines = [
        [
            f"assign one point and add it to its sum, {run['n_rows'] / run['n_clusters']:,.0f} points per cluster",
            us(few.assign),
        ],
        [f"the same, {BILLION / MILLION:,.0f} points per cluster", us(many.assign)],
        ["candidates per point, in these two cases", f"{few.candidates:.0f} and {many.candidates:.0f}"],
        [
            "slowest partition relative to the average, in these two cases",
            f"{few.slowest:.2f} and {many.slowest:.2f}",
        ],
        ["add one value of the sums", f"{few.add * 1e9:.2f} ns of a core"],
        ["compare one centre with one piece", f"{few.near * 1e9:.2f} ns of a core"],
        ["list one pair of centre and partition", f"{few.group * 1e9:.1f} ns of a core"],
        ["compute one value of the centres", f"{few.finish * 1e9:.2f} ns of a core"],
        ["schedule one task", f"{few.task * 1e3:.2f} ms"],
        ["move one byte of a result between processes", f"{few.move * 1e9:.2f} ns"],
        ["run one empty task", f"{few.start * 1e3:.1f} ms"],
        ["write and sync one small file", f"{few.write * 1e3:.1f} ms"],
        ["remove one small file", f"{few.remove * 1e3:.2f} ms"],
        ["write throughput of this machine", f"{measured(rows, 'cluster')['storage'] / 1e9:.2f} GB/s"],
    ]
    header = (
        "partitions",
        "clusters",
        "clusters per partition",
        "with points of a cluster",
        "groups",
        "receiving a centre",
    )
    spread = [
        [
            str(row["partitions"]),
            f"{row['n_clusters']:,}",
            f"{row['n_clusters'] / row['partitions']:,.0f}",
            f"{row['replicas']:.2f}",
            f"{row['merged']:.2f}",
            f"{row['entered']:.2f}",
        ]
        for row in by_partitions(rows["replicas"])
    ]
    return (
        f"{markdown_table(('operation', 'measured'), lines)}\n\n"
        "Number of partitions with points of one cluster, of groups of partitions whose merged sums include it, and of "
        f"partitions that receive one centre:\n\n{markdown_table(header, spread)}"
    )


def us(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} µs of a core"


def check_table(rows: Rows) -> str:
    """Time and memory by the model, beside the runs."""
    memory = {
        row["partitions"]: row["task_memory"]
        for row in rows["costs"]
        if row["what"] == "tasks" and row["n_clusters"] == on_clusters(rows)[-1]["n_clusters"]
    }
    lines = []
    for row, expected in beside_the_model(rows):
        seconds = row.get("iteration_seconds")
        lines.append(
            [
                str(row["partitions"]),
                str(row["workers"]),
                f"{expected.seconds:.2f}",
                f"{seconds:.2f}" if seconds else "–",
                f"{seconds / expected.seconds:.2f}" if seconds else "–",
                f"{expected.flops / 1e9:.0f}",
                f"{expected.task_memory / 1e6:.0f}",
                f"{memory[row['partitions']] / 1e6:.0f}",
                f"{memory[row['partitions']] / expected.task_memory:.2f}",
            ]
        )
    return markdown_table(
        (
            *("partitions", "workers", "predicted, s", "measured, s", "measured / predicted", "Gflop"),
            *("predicted MB of a task", "measured, MB", "measured / predicted"),
        ),
        lines,
    )


def billion(rows: Rows, n_machines: int, n_partitions: int) -> Iteration:
    constants = constants_of(rows, BILLION, MILLION, n_partitions)
    return iteration(BILLION, WIDTH, MILLION, n_machines, constants, Machine(), n_partitions=n_partitions)


def a_partition_each(rows: Rows) -> dict[int, Iteration]:
    """An iteration on each number of machines, with as many partitions as cores."""
    return {n_machines: billion(rows, n_machines, n_machines * Machine().cores) for n_machines in SIZES}


def best_partitions(rows: Rows, n_machines: int) -> tuple[int, float]:
    """Of one partition a core, or fewer: how many are the fastest, and the seconds of an iteration."""
    n_cores = n_machines * Machine().cores
    choices = [n_cores // fewer for fewer in FEWER_PARTITIONS]
    found = {n_partitions: billion(rows, n_machines, n_partitions).seconds for n_partitions in choices}
    best = min(found, key=lambda n_partitions: found[n_partitions])
    return best, found[best]


def billion_table(rows: Rows) -> str:
    machine, answers = Machine(), a_partition_each(rows)

    def line(name: str, show: Callable[[Iteration], str]) -> list[str]:
        return [name, *map(show, answers.values())]

    best = [best_partitions(rows, n_machines) for n_machines in SIZES]
    lines = [
        *(line(name.replace("centers", "centres"), partial(show_seconds, name)) for name in PARTS),
        line("**total**", lambda found: f"**{found.seconds:.1f}**"),
        line("longest part", lambda found: found.bottleneck),
        line(f"{ITERATIONS} iterations, in minutes", lambda found: f"{found.seconds * ITERATIONS / 60:.1f}"),
        line("network traffic, GB", lambda found: f"{found.wire_bytes / 1e9:.1f}"),
        line("memory of a worker machine, GB", lambda found: f"{found.worker_memory / 1e9:.1f}"),
        line("memory of the driver, GB", lambda found: f"{found.driver_memory / 1e9:.1f}"),
        line("arithmetic, Tflop", lambda found: f"{found.flops / 1e12:.0f}"),
        ["best number of partitions", *(f"{n_partitions:,}" for n_partitions, _ in best)],
        ["seconds with that number", *(f"{seconds:.1f}" for _, seconds in best)],
    ]
    header = ("part of an iteration, s", *(f"{n_machines:,} machines" for n_machines in SIZES))
    return (
        f"Machines of {machine.cores} cores, {machine.memory / 1e9:.0f} GB, {machine.network * 8 / 1e9:g} Gbit/s, "
        f"{machine.storage / 1e9:g} GB/s of shared storage; one partition per core.\n\n"
        f"{markdown_table(header, lines)}"
    )


def show_seconds(part: str, found: Iteration) -> str:
    return f"{getattr(found, part):.2f}"


def troubles_table(rows: Rows) -> str:
    cores = Machine().cores
    lines = []
    for n_machines, found in a_partition_each(rows).items():
        n_tasks, of_tasks = n_machines * cores, found.assign + found.rows + found.labels
        replay = partial(simulate, n_machines, cores, n_tasks, of_tasks, found.seconds - of_tasks)
        outcomes = [replay(trouble, REPLAYED_TASKS // n_tasks) for trouble in TROUBLES.values()]
        lines.append([f"{n_machines:,}", *(f"{outcome.seconds:.1f}" for outcome in outcomes)])
    return f"Mean seconds per iteration.\n\n{markdown_table(('machines', *TROUBLES), lines)}"


# In the order in which they are shown. The titles are what docs/scale.md finds them by.
SECTIONS: dict[str, Callable[[Rows], str]] = {
    "Quality": quality_table,
    "Bytes moved in an iteration": bytes_table,
    "How widely centres are entered": entered_table,
    "Kills at random moments": kills_table,
    "dask-ml's KMeans on the same cluster": rival_table,
    "Constants": constants_table,
    "The model beside runs": check_table,
    "A billion rows into a million clusters": billion_table,
    "Stragglers and failures": troubles_table,
}
