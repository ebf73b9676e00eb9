"""The tables of ``results/scale``, and the model's answer for a billion rows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from benchmarks.results import Row, latest, markdown_table, read_rows
from benchmarks.scale.model import PARTS, Constants, Iteration, Machine, iteration
from benchmarks.scale.simulate import Troubles, simulate
from closure_kmeans.distributed.passes import sums_bytes

COMMANDS = ("quality", "replicas", "costs", "rival", "kills")
BILLION, MILLION, WIDTH = 1_000_000_000, 1_000_000, 128
TROUBLES = {
    "none": Troubles(),
    "one machine in twenty three times slower": Troubles(slow_share=0.05),
    "each machine fails once a day": Troubles(hours_between_failures=24),
    "both": Troubles(slow_share=0.05, hours_between_failures=24),
}


def write(folder: Path, suffix: str) -> str:
    """Write the report beside the results, the names of which end in ``suffix``."""
    rows = {name: read_rows(folder / f"{name}{suffix}.jsonl") for name in COMMANDS}
    rows = {name: found for name, found in rows.items() if found}
    if not rows:
        raise SystemExit(f"there are no results in '{folder}' yet")
    parts = ["# Beyond one machine"]
    if "quality" in rows:
        parts += [quality_table(rows["quality"]), bytes_table(rows["quality"])]
    if "replicas" in rows:
        parts.append(replicas_table(rows["replicas"]))
    if "costs" in rows and rows.keys() & {"replicas", "quality"}:
        constants = constants_of(rows)
        parts += [constants_table(constants), check_table(rows, constants), billion_tables(constants)]
    if "rival" in rows:
        parts.append(rival_table(rows["rival"]))
    if "kills" in rows:
        parts.append(kills_table(rows["kills"]))
    machine = next(iter(rows.values()))[-1]["machine"]
    parts.append(f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:g} GB.")
    text = "\n\n".join(parts) + "\n"
    (folder / f"README{suffix}.md").write_text(text)
    return text


def by_partitions(rows: list[Row]) -> list[Row]:
    kept = latest(rows, lambda row: (row["partitions"], row["n_clusters"], row["seed"], row["workers"]))
    return sorted(kept, key=lambda row: (row["n_clusters"], row["partitions"], row["workers"]))


def quality_table(rows: list[Row]) -> str:
    found = by_partitions(rows)
    one = next((row for row in found if row["partitions"] == 0), found[0])
    lines = [
        [
            "one machine" if row["partitions"] == 0 else str(row["partitions"]),
            "" if row["partitions"] == 0 else str(row["workers"]),
            str(row["iterations"]),
            f"{row['distortion']:,.1f}",
            f"{row['distortion'] / one['distortion'] - 1:+.2%}",
            f"{row['exact_distortion'] / one['exact_distortion'] - 1:+.2%}",
            f"{row['accuracy']:.1%}",
            row["digest"],
        ]
        for row in found
    ]
    header = ("partitions", "workers", "iterations", "distortion", "", "nearest centres", "accuracy", "digest")
    title = f"{one['n_rows']:,} x {WIDTH} SIFT into {one['n_clusters']:,}"
    return f"## Quality: {title}\n\n{markdown_table(header, lines)}"


def bytes_table(rows: list[Row]) -> str:
    lines = [
        [
            str(row["partitions"]),
            f"{row['replicas']:.2f}",
            f"{row['entered']:.2f}",
            f"{row['sums_bytes'] / 1e6:.1f} MB",
            f"{row['wire_bytes'] / 1e6:.1f} MB",
            f"{row['wire_bytes'] / row['sums_bytes']:.2f}",
            f"{row['centers_bytes'] / 1e6:.1f} MB",
        ]
        for row in by_partitions(rows)
        if row["partitions"] > 0
    ]
    header = ("partitions", "replicas", "entered", "sums, model", "over the wire", "ratio", "file of centres")
    return f"## Bytes an iteration\n\n{markdown_table(header, lines)}"


def replicas_table(rows: list[Row]) -> str:
    lines = [
        [str(row["partitions"]), f"{row['n_clusters']:,}", f"{row['replicas']:.2f}", f"{row['entered']:.2f}"]
        for row in by_partitions(rows)
    ]
    header = ("partitions", "clusters", "replicas", "entered")
    return f"## Partitions that a cluster has points in, 625 clusters a partition\n\n{markdown_table(header, lines)}"


def constants_of(rows: dict[str, list[Row]]) -> Constants:
    tasks = [row for row in rows["costs"] if row["what"] == "tasks"]
    driver, cluster = (
        next(row for row in reversed(rows["costs"]) if row["what"] == what) for what in ("driver", "cluster")
    )
    spread = by_partitions(rows.get("replicas", rows.get("quality", [])))[-1]
    return Constants(
        assign=max(row["assign"] for row in tasks),
        slowest=max(row["assign_slowest"] / row["assign"] for row in tasks),
        add=driver["add"],
        near=driver["near"],
        group=driver["group"],
        finish=driver["finish"],
        **{name: cluster[name] for name in ("task", "move", "start", "write")},
        **{name: spread[name] for name in ("replicas", "merged", "entered")},
    )


def constants_table(constants: Constants) -> str:
    lines = [
        ["a point assigned and summed up", f"{constants.assign * 1e6:.2f} µs of a core"],
        ["the slowest partition, against the average", f"{constants.slowest:.2f} times"],
        ["a value of the sums added", f"{constants.add * 1e9:.2f} ns"],
        ["a pair of centre and cell compared", f"{constants.near * 1e9:.2f} ns"],
        ["a pair of centre and partition listed", f"{constants.group * 1e9:.1f} ns"],
        ["a value of the centres computed", f"{constants.finish * 1e9:.2f} ns"],
        ["a task sent, and told of as done", f"{constants.task * 1e3:.2f} ms"],
        ["a byte of a result, to the driver", f"{constants.move * 1e9:.2f} ns"],
        ["a task with nearly nothing to do", f"{constants.start * 1e3:.1f} ms"],
        ["a small file written for good", f"{constants.write * 1e3:.1f} ms"],
        ["partitions that a cluster has points in", f"{constants.replicas:.2f}"],
        ["sums of a cluster that reach the driver, merged", f"{constants.merged:.2f}"],
        ["partitions that a centre is entered into", f"{constants.entered:.2f}"],
    ]
    return f"## Constants\n\n{markdown_table(('', 'measured'), lines)}"


def check_table(rows: dict[str, list[Row]], constants: Constants) -> str:
    """The model beside the runs."""
    lines = []
    storage = next(row["storage"] for row in reversed(rows["costs"]) if row["what"] == "cluster")
    for row in by_partitions(rows.get("quality", [])):
        if row["partitions"] == 0 or "iteration_seconds" not in row:
            continue
        own = replace(constants, **{name: row[name] for name in ("replicas", "merged", "entered")})
        # What a byte takes on this machine is in the constants.
        machine = Machine(cores=row["workers"], network=math.inf, storage=storage)
        expected = iteration(row["n_rows"], WIDTH, row["n_clusters"], 1, own, machine, n_partitions=row["partitions"])
        lines.append(
            [
                str(row["partitions"]),
                str(row["workers"]),
                f"{expected.seconds:.2f}",
                f"{row['iteration_seconds']:.2f}",
                f"{row['iteration_seconds'] / expected.seconds:.2f}",
                f"{sums_bytes(row['replicas'] * row['n_clusters'], WIDTH) / 1e6:.1f}",
                f"{row['wire_bytes'] / 1e6:.1f}",
            ]
        )
    if not lines:
        return "The runs were made on a busy machine, and their times were not kept."
    header = ("partitions", "workers", "model, s", "measured, s", "ratio", "model, MB", "measured, MB")
    return f"## The model against runs: an iteration on one machine\n\n{markdown_table(header, lines)}"


def billion(n_machines: int, constants: Constants, machine: Machine) -> Iteration:
    return iteration(BILLION, WIDTH, MILLION, n_machines, constants, machine)


def billion_tables(constants: Constants) -> str:
    machine, sizes = Machine(), (10, 100, 1_000)
    answers = {n_machines: billion(n_machines, constants, machine) for n_machines in sizes}
    lines = [
        [
            f"{n_machines:,}",
            *(f"{getattr(found, name):.2f}" for name in PARTS),
            f"**{found.seconds:.1f}**",
            f"{found.wire_bytes / 1e9:.1f}",
            f"{found.worker_memory / 1e9:.1f}",
            f"{found.driver_memory / 1e9:.1f}",
            found.bottleneck,
        ]
        for n_machines, found in answers.items()
    ]
    header = (
        "machines",
        *(name.replace("centers", "centres") for name in PARTS),
        *("seconds", "wire GB", "worker GB", "driver GB", "first bottleneck"),
    )
    parts = [
        f"## A billion x {WIDTH} bytes into a million clusters: an iteration, in seconds",
        markdown_table(header, lines),
        f"Machines of {machine.cores} cores, {machine.memory / 1e9:.0f} GB, {machine.network * 8 / 1e9:g} Gbit/s, "
        f"{machine.storage / 1e9:g} GB/s from the shared storage, a partition for each core.",
    ]
    header = ("machines", *TROUBLES)
    lines = []
    for n_machines, found in answers.items():
        tasks = n_machines * machine.cores
        outcomes = [
            simulate(n_machines, machine.cores, tasks, of_tasks(found), found.seconds - of_tasks(found), trouble)
            for trouble in TROUBLES.values()
        ]
        lines.append([f"{n_machines:,}", *(f"{outcome.seconds:.1f}" for outcome in outcomes)])
    parts += ["## The same with stragglers and failures, simulated", markdown_table(header, lines)]
    return "\n\n".join(parts)


def of_tasks(found: Iteration) -> float:
    """Seconds of an iteration that are those of the tasks that assign."""
    return found.assign + found.rows + found.labels


def rival_table(rows: list[Row]) -> str:
    lines = [
        [
            row["method"],
            f"{row['n_clusters']:,}",
            f"{row['seconds']:.1f}" if "seconds" in row else "–",
            str(row["iterations"]),
            f"{row['exact_distortion']:,.1f}",
        ]
        for row in latest(rows, lambda row: (row["method"], row["n_clusters"]))
    ]
    header = ("", "clusters", "seconds", "iterations", "distortion")
    return f"## dask-ml's KMeans on the same cluster\n\n{markdown_table(header, lines)}"


def kills_table(rows: list[Row]) -> str:
    lines = [
        [row["killed"], str(row["n_kills"]), str(row["n_same"])] for row in latest(rows, lambda row: (row["killed"],))
    ]
    return f"## Kills at random moments\n\n{markdown_table(('killed', 'fits', 'with the same bytes'), lines)}"
