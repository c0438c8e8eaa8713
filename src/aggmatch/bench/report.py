"""What was measured, as plain values for JSON, and the tables that are made of them."""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from typing import Any

import torch

import aggmatch
from aggmatch.bench.aggregation import SHAPES, measure_aggregation
from aggmatch.bench.step import Bench, describe_data
from aggmatch.bench.timing import Effort, release
from aggmatch.config import Layer, parse_value
from aggmatch.data import SOURCES
from aggmatch.devices import hardware
from aggmatch.errors import AggMatchError, unknown
from aggmatch.settings import RunSettings, resolve
from aggmatch.tables import Table

PEAK = {"cuda": "Peak: tensors on the GPU, the training images among them.", "cpu": "Peak: the whole process."}
APART = "Pieces timed apart need not add up to the step; `other` is what is left of it and may be negative."


# Plan ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Growth:
    """A setting and the values that it is to grow through."""

    key: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> "Growth":
        """`train.batch=32,64` as given to `--grow`."""
        key, equals, values = text.partition("=")
        parsed = tuple(parse_value(value.strip()) for value in values.split(",") if value.strip())
        if not equals or not key.strip() or not parsed:
            raise AggMatchError(
                f"--grow takes key=value,value,..., got '{text}'. For example: --grow train.batch=32,64"
            )
        return cls(key.strip(), parsed)


@dataclass(frozen=True)
class Plan:
    """Everything that is to be measured, resolved and checked."""

    methods: Mapping[str, RunSettings]
    growths: Mapping[str, Sequence[tuple[str, Any, RunSettings]]]
    """Key → (method, value, settings)."""


def plan(methods: Sequence[str], layers: Sequence[Layer], growths: Sequence[Growth]) -> Plan:
    """Settings of all measurements. A mistake in any of them is found here, before the first one starts."""

    def settings(method: str, *more: Layer) -> RunSettings:
        found = resolve([*layers, Layer(f"--method {method}", {"method.name": method}), *more])
        if found.data.name not in SOURCES:
            raise unknown("data set", found.data.name, SOURCES, see="aggmatch list data")
        return found

    chosen = {method: settings(method) for method in methods}
    grown = {
        growth.key: [
            (method, value, settings(method, Layer(f"--grow {growth.key}={value}", {growth.key: value})))
            for method in methods
            for value in growth.values
        ]
        for growth in growths
    }
    return Plan(chosen, grown)


# Measure ---------------------------------------------------------------------------------------------------------


def measure_steps(plan: Plan, effort: Effort, *, stages: bool, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure all methods and growths. What fails beside others is left out and named; alone, it is the error."""
    methods: list[dict[str, Any]] = []
    growths: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    for name, settings in plan.methods.items():
        tell(f"Measuring {name} on {settings.data.name} ...")
        cost = attempt(partial(measure_method, settings, effort, stages=stages))
        if isinstance(cost, str):
            left_out.append({"method": name, "reason": cost})
        else:
            methods.append({"method": name, "settings": settings.to_dict(), **cost})
    for key, points in plan.growths.items():
        for name, value, settings in points:
            tell(f"Measuring {name} with {key}={value} ...")
            cost = attempt(partial(measure_step, settings, effort))
            point = {"key": key, "method": name, "value": value}
            growths.append(point | ({"reason": cost} if isinstance(cost, str) else cost))
    if not methods and left_out:
        raise AggMatchError(left_out[0]["reason"])
    first = next(iter(plan.methods.values()))
    return {
        **circumstances(effort.device),
        "data": first.data.name,
        "images": describe_data(first.data.name),
        "methods": methods,
        "left_out": left_out,
        "growths": growths,
    }


def measure_method(settings: RunSettings, effort: Effort, *, stages: bool) -> dict[str, Any]:
    """Everything about a method's step."""
    return Bench(settings, effort).everything(stages=stages).to_dict()


def measure_step(settings: RunSettings, effort: Effort) -> dict[str, Any]:
    """The step alone."""
    cost, _ = Bench(settings, effort).step()
    return cost.to_dict()


def attempt(measure: Callable[[], dict[str, Any]]) -> dict[str, Any] | str:
    """What was measured, or why it could not be."""
    try:
        return measure()
    except AggMatchError as error:
        return str(error)
    except torch.OutOfMemoryError:
        reason = "It does not fit into the memory of the GPU."
    release()  # outside of the handler, which holds on to what did not fit
    return reason


def measure_kernels(effort: Effort, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure the aggregation alone."""
    rows = []
    for shape in SHAPES[effort.device.type]:
        tell(f"Measuring the aggregation in the shape of {shape.name} ...")
        rows.append(measure_aggregation(shape, effort))
    return {**circumstances(effort.device), "aggregation": rows}


def circumstances(device: torch.device) -> dict[str, Any]:
    """Where and when it was measured, and with what."""
    versions = {"aggmatch": aggmatch.__version__, "torch": torch.__version__, "python": platform.python_version()}
    with suppress(metadata.PackageNotFoundError):
        versions["triton"] = metadata.version("triton")
    if torch.version.cuda:
        versions |= {"cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}
    return {
        "format": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device.type,
        "hardware": hardware(device),
        "versions": versions,
    }


# Tables ----------------------------------------------------------------------------------------------------------


def tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """The tables of a report, fresh or read from its JSON."""
    where = f"{report['hardware']}, torch {report['versions']['torch']}, {report['date'][:10]}"
    if "aggregation" in report:
        yield aggregation_table(report["aggregation"], where)
        return
    methods = report["methods"]
    left_out = [f"{entry['method']} was left out: {entry['reason']}" for entry in report["left_out"]]
    title = f"A training step on {report['data']}: {where}"
    yield step_table(methods, title, [report["images"], PEAK[report["device"]], *left_out])
    yield comparison_table(methods)
    yield floor_table(methods)
    for method in methods:
        if method["stages"]:
            yield stage_table(method)
    for key in dict.fromkeys(point["key"] for point in report["growths"]):
        yield growth_table(key, [point for point in report["growths"] if point["key"] == key])


def step_table(methods: Sequence[Mapping[str, Any]], title: str, notes: Sequence[str]) -> Table:
    """What a step takes."""
    rows = []
    for method in methods:
        step = method["step"]
        peak = method["peak_memory_bytes"] and method["peak_memory_bytes"] / 1e9
        times = [step["median_ms"], step["p5_ms"], step["p95_ms"], round(method["images_per_second"])]
        rows.append([method["method"], *times, peak, method["first_step_seconds"]])
    columns = ["method", "step ms", "5 %", "95 %", "images/s", "peak GB", "first s"]
    calls = sorted({method["step"]["calls"] for method in methods})
    counted = f"Medians and percentiles of {calls[0]}{f' to {calls[-1]}' if len(calls) > 1 else ''} steps."
    return Table(columns, rows, title, [counted, *notes])


def comparison_table(methods: Sequence[Mapping[str, Any]]) -> Table:
    """The step against the eager one, and the loop against the bare step."""
    rows = []
    for method in methods:
        eager = method["eager"] and method["eager"]["median_ms"]
        rows.append(
            [
                method["method"],
                eager,
                method["eager_over_captured"],
                1e3 / method["bare"]["median_ms"],
                method["loop_steps_per_second"],
                100 * method["loop_share_of_bare"],
            ]
        )
    columns = ["method", "eager ms", "× captured", "bare steps/s", "train steps/s", "of bare %"]
    notes = ["bare: the computation alone. train: the training loop with its log, without evaluations and checkpoints."]
    if all(row[1] is None for row in rows):
        columns, rows = without(columns, rows, 1, 2)
    return Table(columns, rows, "In the training loop", notes)


def without(columns: list[str], rows: list[list[Any]], *dropped: int) -> tuple[list[str], list[list[Any]]]:
    """A table's columns and rows without some columns."""
    kept = [number for number in range(len(columns)) if number not in dropped]
    return [columns[number] for number in kept], [[row[number] for number in kept] for row in rows]


def floor_table(methods: Sequence[Mapping[str, Any]]) -> Table:
    """The least that a step can take."""
    rows = []
    for method in methods:
        floor = method["floor"]
        least = [floor["compute_ms"], floor["memory_ms"], method["step"]["median_ms"]]
        rows.append([method["method"], floor["flops"] / 1e9, floor["bytes"] / 1e6, *least, 100 * floor["share"]])
    columns = ["method", "GFLOP", "MB", "compute ms", "memory ms", "step ms", "floor %"]
    rates = {
        f"Measured here: {rate['flops_per_second'] / 1e9:,.0f} GFLOP/s in {rate['arithmetic']} matrix products, "
        f"{rate['bytes_per_second'] / 1e9:,.0f} GB/s in copies."
        for rate in (method["floor"]["rates"] for method in methods)
    }
    meaning = "The floor is the larger of compute and memory, what a step takes at this machine's best rates."
    notes = [meaning, *sorted(rates)]
    return Table(columns, rows, "The least that it can take", notes)


def stage_table(method: Mapping[str, Any]) -> Table:
    """What the parts of a step take."""
    whole = method["step"]["median_ms"]
    rows = [
        [stage["stage"], stage["median_ms"], stage["p5_ms"], stage["p95_ms"], 100 * stage["median_ms"] / whole]
        for stage in method["stages"]
    ]
    columns = ["stage", "ms", "5 %", "95 %", "of the step %"]
    return Table(columns, rows, f"Stages of {method['method']}", [APART])


def growth_table(key: str, points: Sequence[Mapping[str, Any]]) -> Table:
    """How the step changes with a setting."""
    rows = []
    failures = []
    first: dict[str, float] = {}
    for point in points:
        if "reason" in point:
            rows.append([point["method"], str(point["value"]), None, None, None, None])
            failures.append(f"{point['method']} with {key}={point['value']}: {point['reason']}")
            continue
        rate = point["steps_per_second"]
        relative = rate / first.setdefault(point["method"], rate)
        images = round(point["images_per_second"])
        rows.append([point["method"], str(point["value"]), point["step"]["median_ms"], rate, relative, images])
    columns = ["method", key, "step ms", "steps/s", "× the first", "images/s"]
    return Table(columns, rows, f"As {key} grows", failures)


def aggregation_table(rows: Sequence[Mapping[str, Any]], where: str) -> Table:
    """Both forms of the aggregation."""
    content = []
    for row in rows:
        fused, plain = row["fused"] or {}, row["plain"] or {}
        memory = [form.get("extra_memory_bytes") for form in (fused, plain)]
        rate = row["logarithms_per_second"] and row["logarithms_per_second"] / 1e9
        content.append(
            [
                row["name"],
                fused.get("median_ms"),
                plain.get("median_ms"),
                row["plain_over_fused"],
                *(size / 1e6 if size is not None else None for size in memory),
                rate,
            ]
        )
    columns = ["shape", "fused ms", "plain ms", "plain/fused", "fused MB", "plain MB", "10⁹ log/s"]
    notes = [
        f"{row['name']}: {row['classes']} classes, {row['slots']} slots each in {row['subsets']} subsets, "
        f"{row['queries']} queries, {row['features']} features."
        for row in rows
    ]
    if all(row["fused"] is None for row in rows):
        notes.append("The fused kernel runs on CUDA only.")
    return Table(columns, content, f"Aggregation: {where}", notes)
