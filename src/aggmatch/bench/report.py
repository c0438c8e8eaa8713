"""Plans and runs the measurements of `aggmatch bench`: plain values for JSON, and tables made of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from typing import Any

import torch

from aggmatch import devices
from aggmatch.bench.aggregation import SHAPES, measure_aggregation
from aggmatch.bench.step import Bench, describe_data
from aggmatch.bench.timing import Effort, release
from aggmatch.config import Layer, parse_value
from aggmatch.data import SOURCES
from aggmatch.errors import AggMatchError
from aggmatch.registry import short_name
from aggmatch.settings import RunSettings, resolve
from aggmatch.tables import Table

PEAK = {"cuda": "Peak: tensors on the GPU, the training images among them.", "cpu": "Peak: the whole process."}
APART = "Stages timed separately need not add up to the step; `other` is the remainder and may be negative."


# Plan ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Growth:
    """A setting and the values at which the step is timed."""

    key: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> "Growth":
        """Parse `train.batch=32,64`, an argument of `--grow`."""
        key, equals, values = text.partition("=")
        parsed = tuple(parse_value(value.strip()) for value in values.split(",") if value.strip())
        if not equals or not key.strip() or not parsed:
            raise AggMatchError(f"--grow takes key=value,value,..., got '{text}'. Example: --grow train.batch=32,64")
        return cls(key.strip(), parsed)


@dataclass(frozen=True)
class Plan:
    """Everything to measure, resolved and checked."""

    methods: Mapping[str, RunSettings]
    growths: Mapping[str, Sequence[tuple[str, Any, RunSettings]]]
    """Key → (method, value, settings)."""


def plan(methods: Sequence[str], layers: Sequence[Layer], growths: Sequence[Growth]) -> Plan:
    """Return the settings of all measurements; raise for any mistake in them, before the first measurement."""

    def settings(method: str, *more: Layer) -> RunSettings:
        found = resolve([*layers, Layer(f"--method {method}", {"method.name": method}), *more])
        SOURCES.load(found.data.name)  # raises if there is no such data set
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
    """Measure all methods and growths; return plain values for JSON.

    A measurement that fails is left out, with its reason. If all methods fail, the first reason is raised.
    tell: progress callback, takes a line of text.
    """
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
        **provenance(effort.device),
        "data": first.data.name,
        "images": describe_data(first.data.name),
        "methods": methods,
        "left_out": left_out,
        "growths": growths,
    }


def measure_method(settings: RunSettings, effort: Effort, *, stages: bool) -> dict[str, Any]:
    """Measure everything about a method's step."""
    return Bench(settings, effort).everything(stages=stages).to_dict()


def measure_step(settings: RunSettings, effort: Effort) -> dict[str, Any]:
    """Measure the step alone."""
    cost, _ = Bench(settings, effort).step()
    return cost.to_dict()


def attempt(measure: Callable[[], dict[str, Any]]) -> dict[str, Any] | str:
    """Return the measurement, or the reason why it failed."""
    try:
        return measure()
    except AggMatchError as error:
        return str(error)
    except torch.OutOfMemoryError:
        reason = "It does not fit into the memory of the GPU."
    release()  # outside of the handler, which still refers to the tensors
    return reason


def measure_kernels(effort: Effort, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure the aggregation alone. tell: progress callback, takes a line of text."""
    rows = []
    for shape in SHAPES[effort.device.type]:
        tell(f"Measuring the aggregation in the shape of {shape.name} ...")
        rows.append(measure_aggregation(shape, effort))
    return {**provenance(effort.device), "aggregation": rows}


def provenance(device: torch.device) -> dict[str, Any]:
    """Return date, hardware and versions of a measurement."""
    known = devices.provenance(device, 0)
    with suppress(metadata.PackageNotFoundError):
        known["versions"]["triton"] = metadata.version("triton")
    if torch.version.cuda:
        known["versions"] |= {"cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}
    return {"format": 1, "date": datetime.now(UTC).isoformat(timespec="seconds"), "device": device.type, **known}


# Tables ----------------------------------------------------------------------------------------------------------


def tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """Return the tables of a report, which may come from a JSON file."""
    where = f"{report['hardware']}, torch {report['versions']['torch']}, {report['date'][:10]}"
    if "aggregation" in report:
        yield aggregation_table(report["aggregation"], where)
        return
    methods = report["methods"]
    left_out = [f"{entry['method']} was left out: {entry['reason']}" for entry in report["left_out"]]
    title = f"A training step on {short_name(report['data'])}: {where}"
    yield step_table(methods, title, [report["images"], PEAK[report["device"]], *left_out])
    yield comparison_table(methods)
    yield floor_table(methods)
    for method in methods:
        if method["stages"]:
            yield stage_table(method)
    for key in dict.fromkeys(point["key"] for point in report["growths"]):
        yield growth_table(key, [point for point in report["growths"] if point["key"] == key])


def step_table(methods: Sequence[Mapping[str, Any]], title: str, notes: Sequence[str]) -> Table:
    """Return the table of time and memory of a step."""
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
    """Return the table that compares the step with the eager step and the training loop."""
    rows = []
    for method in methods:
        eager = method["eager"] and method["eager"]["median_ms"]
        rates = [1e3 / method["bare"]["median_ms"], method["loop_steps_per_second"], 100 * method["loop_share_of_bare"]]
        rows.append([method["method"], eager, method["eager_over_captured"], *rates])
    columns = ["method", "eager ms", "× captured", "bare steps/s", "train steps/s", "of bare %"]
    notes = ["bare: the computation alone. train: the training loop with its log, without evaluations and checkpoints."]
    return Table(columns, rows, "In the training loop", notes).without_empty()


def floor_table(methods: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of lower bounds."""
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
    return Table(columns, rows, "Lower bound of a step", [meaning, *sorted(rates)])


def stage_table(method: Mapping[str, Any]) -> Table:
    """Return the table of the stages of a step."""
    whole = method["step"]["median_ms"]
    rows = [
        [stage["stage"], stage["median_ms"], stage["p5_ms"], stage["p95_ms"], 100 * stage["median_ms"] / whole]
        for stage in method["stages"]
    ]
    columns = ["stage", "ms", "5 %", "95 %", "of the step %"]
    return Table(columns, rows, f"Stages of {method['method']}", [APART])


def growth_table(key: str, points: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of steps at several values of a setting."""
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
    """Return the table of both forms of the aggregation."""
    content = []
    for row in rows:
        fused, plain = row["fused"] or {}, row["plain"] or {}
        sizes = [form.get("extra_memory_bytes") for form in (fused, plain)]
        memory = [size / 1e6 if size is not None else None for size in sizes]
        rate = row["logarithms_per_second"] and row["logarithms_per_second"] / 1e9
        times = [fused.get("median_ms"), plain.get("median_ms"), row["plain_over_fused"]]
        content.append([row["name"], *times, *memory, rate])
    columns = ["shape", "fused ms", "plain ms", "plain/fused", "fused MB", "plain MB", "10⁹ log/s"]
    notes = [
        f"{row['name']}: {row['classes']} classes, {row['slots']} slots each in {row['subsets']} subsets, "
        f"{row['queries']} queries, {row['features']} features."
        for row in rows
    ]
    if all(row["fused"] is None for row in rows):
        notes.append("The fused kernel runs on CUDA only.")
    return Table(columns, content, f"Aggregation: {where}", notes)
