"""Measure how fast, and in how much memory, a trace becomes usable columns.

Every measurement is a fresh process that reads one file; its clock starts when the modules
are imported. The median of the repetitions counts, and only ratios within one run travel to
another machine. Peak memory is that of the whole process, modules included.

    python benchmarks/ingest.py                         # 50 and 400 MB
    python benchmarks/ingest.py --sizes 50 400 2000 --hta-python .venv-peers/bin/python
    python benchmarks/ingest.py --files trace.json other.json.gz

What is compared, each on one core unless said:

    columns, native    tracekit.io: bytes to event columns, native tokenizer
    columns, python    the same on the Python path
    load, native       tracekit.load: steps, kernels, calls, all checks
    load, python       the same on the Python path
    json + pandas      json.load and a DataFrame of the events
    orjson + columns   orjson.loads of the whole file, numpy columns of four fields
    HTA parse          HolisticTraceAnalysis 0.5.0, parse_trace_dataframe
    gunzip             only inflating, with the library the reader uses (.gz files)

A .gz is inflated on a second thread by tracekit; "cpu" is the time of both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


# -- one measurement, in a process of its own; only what it measures is imported ------


def columns_native(path: str) -> Callable[[], object]:
    return _columns(path, native=True)


def columns_python(path: str) -> Callable[[], object]:
    return _columns(path, native=False)


def _columns(path: str, native: bool) -> Callable[[], object]:
    from tracekit.io import kineto, stream

    def run() -> object:
        with stream.open_trace(path) as opened:
            return kineto.parse(opened, path, native=native)

    return run


def load_native(path: str) -> Callable[[], object]:
    return _load(path, "1")


def load_python(path: str) -> Callable[[], object]:
    return _load(path, "0")


def _load(path: str, native: str) -> Callable[[], object]:
    os.environ.update(TRACEKIT_NATIVE=native, TRACEKIT_CACHE="0")
    from tracekit.io.load import load

    return lambda: load(path, workers=1)


def json_pandas(path: str) -> Callable[[], object]:
    import pandas as pd

    def run() -> object:
        with _opened(path) as stream:
            return pd.DataFrame(json.load(stream)["traceEvents"])

    return run


def orjson_columns(path: str) -> Callable[[], object]:
    import numpy as np
    import orjson

    def run() -> object:
        with _opened(path) as stream:
            events = orjson.loads(stream.read())["traceEvents"]
        kept = [event for event in events if event.get("ph") == "X"]
        names: dict[str, int] = {}
        return (
            np.array([event["ts"] for event in kept]),
            np.array([event["dur"] for event in kept]),
            np.array([names.setdefault(event["name"], len(names)) for event in kept]),
            np.array([event.get("args", {}).get("correlation", -1) for event in kept]),
        )

    return run


def hta_parse(path: str) -> Callable[[], object]:
    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserConfig

    return lambda: parse_trace_dataframe(path, ParserConfig.get_default_cfg())


def gunzip(path: str) -> Callable[[], object]:
    try:
        from isal import igzip as library
    except ImportError:
        import gzip as library  # type: ignore[no-redef]

    def run() -> object:
        target, size = bytearray(1 << 20), 0
        with library.open(path, "rb") as stream:
            while read := stream.readinto(target):
                size += read
        return size

    return run


def _opened(path: str) -> Any:
    import gzip

    return gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")  # noqa: PTH123


CONTENDERS = {
    "columns, native": columns_native,
    "columns, python": columns_python,
    "load, native": load_native,
    "load, python": load_python,
    "json + pandas": json_pandas,
    "orjson + columns": orjson_columns,
    "HTA parse": hta_parse,
    "gunzip": gunzip,
}


def worker(name: str, path: str) -> None:
    run = CONTENDERS[name](path)
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"wall_s": wall, "cpu_s": cpu, "peak_bytes": peak, "type": str(type(result))}))


# -- all of them ---------------------------------------------------------------------


def measure(name: str, path: Path, python: str, repeat: int) -> dict[str, float] | None:
    """Medians of a contender on a file; None, and why, where it does not run."""
    runs: list[dict[str, float]] = []
    for _ in range(repeat):
        done = subprocess.run(
            [python, __file__, "--worker", name, str(path)],
            capture_output=True, text=True, check=False, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or ["killed"]
            print(f"    {name}: left out ({reason[0]})", file=sys.stderr)
            return None
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return {
        key: statistics.median(run[key] for run in runs)
        for key in ("wall_s", "cpu_s", "peak_bytes")
    }


def json_bytes(path: Path) -> int:
    if path.suffix != ".gz":
        return path.stat().st_size
    return int(gunzip(str(path))())  # type: ignore[call-overload]


def compare(path: Path, names: list[str], given: argparse.Namespace) -> None:
    size = json_bytes(path)
    print(f"\n### {path.name}: {size / 1e6:.0f} MB of JSON\n")
    print("| | wall s | cpu s | MB/s | peak MB | peak / JSON | against native |")
    print("|---|---|---|---|---|---|---|")
    first: float | None = None
    for name in names:
        if (name == "gunzip") != (path.suffix == ".gz") and name == "gunzip":
            continue
        python = given.hta_python if name == "HTA parse" else sys.executable
        repeat = given.repeat if "tracekit" in name or "native" in name else given.slow_repeat
        found = measure(name, path, python, repeat)
        if found is None:
            continue
        first = found["wall_s"] if first is None else first
        print(
            f"| {name} | {found['wall_s']:.2f} | {found['cpu_s']:.2f} "
            f"| {size / found['wall_s'] / 1e6:.0f} | {found['peak_bytes'] / 1e6:.0f} "
            f"| {found['peak_bytes'] / size:.2f} | {found['wall_s'] / first:.1f} × |",
            flush=True,
        )


def machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), platform.processor(),
    )  # fmt: skip
    from importlib.metadata import version

    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "msgspec", "pandas"))
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[50, 400], help="megabytes")
    parser.add_argument("--gzip", action="store_true", help="compress the generated files too")
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="measure these as well")
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), help="some contenders")
    parser.add_argument("--repeat", type=int, default=5, help="runs of the native reader")
    parser.add_argument("--slow-repeat", type=int, default=1, help="runs of all others")
    parser.add_argument("--hta-python", default=sys.executable, help="an interpreter with HTA")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(*given.worker)
        return
    sys.path.insert(0, str(ROOT))
    from benchmarks import generate

    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        for size in given.sizes:
            for suffix in (".json", ".json.gz") if given.gzip else (".json",):
                path = Path(folder) / f"generated_{size}MB{suffix}"
                generate.write(path, size)
                compare(path, given.only, given)
                path.unlink()
    for path in given.files:
        compare(path.resolve(), given.only, given)


if __name__ == "__main__":
    main()
