"""Recording a running serving engine with its own profiler, over its HTTP interface.

vLLM and SGLang both answer ``POST /start_profile`` and ``POST /stop_profile`` and
let each rank write a trace. The files are collected into a run folder with what
the engine tells of itself.

Sources: docs.vllm.ai, contributing/profiling; docs.sglang.io, developer_guide/
benchmark_and_profiling.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tracekit.core.errors import InputError, MissingDataError, UsageError
from tracekit.io import manifest
from tracekit.profile import launch

POLL_S = 0.1
# A folder in which nothing has changed for so long is complete, where the engine does not
# say how many files to expect.
SETTLED_S = 2.0
ANSWER_S = 30.0

_TRACE = re.compile(r"\.json(\.gz)?$")
# The engine's own front end and SGLang's merged file are no ranks.
_NO_RANK = re.compile(r"async_llm|api_server|^merged-|-memory", re.IGNORECASE)
_PLACE = re.compile(r"\b(DP|PP|TP)-(\d+)")
_RANK = re.compile(r"rank[_-]?(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to record of which engine."""

    url: str
    duration_s: float | None = None
    steps: int | None = None
    trace_dir: Path | None = None  # where the engine writes, as seen from here
    timeout_s: float = 600.0  # for the engine to write its files


@dataclass(frozen=True, slots=True)
class Engine:
    """A serving engine, as it describes itself."""

    name: str  # "sglang" or "vllm"
    version: str | None
    model: str | None
    sizes: Mapping[str, int]  # axis -> degree, as far as it tells
    facts: Mapping[str, Any]  # dtype, context length

    @property
    def ranks(self) -> int | None:
        """Trace files to expect; None where the engine does not say."""
        if not self.sizes:
            return None
        return self.sizes.get("tp", 1) * self.sizes.get("pp", 1) * self.sizes.get("dp", 1)


def run(
    request: Request, out: Path, *, force: bool = False, on_progress: Callable[[str], None]
) -> Path:
    """Record an engine and write a run folder.

    Raises:
        UsageError: the request makes no sense for this engine.
        InputError: the engine does not answer, or its files do not come.
        MissingDataError: the engine was started without its profiler.
    """
    if (request.duration_s is None) == (request.steps is None):
        raise UsageError("--server: give either --duration SECONDS or --steps N")
    launch.check_output(out, force)
    client = Client(request.url)
    on_progress(f"asking {request.url}")
    engine = describe(client)
    if request.steps is not None and engine.name == "vllm":
        raise UsageError("--steps: vLLM does not count steps over HTTP; use --duration SECONDS")
    with launch.partial_folder(out) as folder:
        where = _where(request, engine, folder)
        before = _files(where)
        _record(client, engine, request, where, on_progress)
        on_progress("waiting for the trace files")
        files = wait_for_files(where, before, engine.ranks, request.timeout_s)
        entries = _collect(files, folder)
        manifest.write(folder, _manifest(out.name, request, engine, entries))
        launch.publish(folder, out)
    return out


class Client:
    """Speaks to one server."""

    def __init__(self, url: str) -> None:
        if not re.match(r"https?://", url):
            raise UsageError(f"--server {url}: give a URL such as http://127.0.0.1:8000")
        self._url = url.rstrip("/")

    def get(self, path: str) -> Any:
        """The JSON at a path, None where there is none."""
        status, body = self._ask(urllib.request.Request(self._url + path))
        if status != 200:
            return None
        try:
            return json.loads(body)
        except ValueError:
            return None

    def post(self, path: str, content: Mapping[str, Any], timeout_s: float) -> int:
        """Post JSON and return the status."""
        request = urllib.request.Request(
            self._url + path,
            data=json.dumps(content).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        return self._ask(request, timeout_s)[0]

    def _ask(
        self, request: urllib.request.Request, timeout_s: float = ANSWER_S
    ) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except (OSError, urllib.error.URLError) as error:
            reason = getattr(error, "reason", error)
            raise InputError(
                f"{self._url}: no answer ({reason}); is the server running?"
            ) from error


def describe(client: Client) -> Engine:
    """Which engine answers, and what it tells of itself.

    Raises:
        InputError: it is neither vLLM nor SGLang.
    """
    for path in ("/get_server_info", "/server_info"):
        told = client.get(path)
        if isinstance(told, dict) and "tp_size" in told:
            return _sglang(told)
    told = client.get("/version")
    if isinstance(told, dict) and "version" in told:
        return _vllm(told, client.get("/v1/models"))
    raise InputError(
        "the server is neither SGLang (/get_server_info) nor vLLM (/version); "
        "tracekit can drive the profilers of these two"
    )


def _sglang(told: Mapping[str, Any]) -> Engine:
    sizes = {
        axis: int(told[key])
        for axis, key in (
            ("tp", "tp_size"),
            ("pp", "pp_size"),
            ("dp", "dp_size"),
            ("ep", "ep_size"),
        )
        if isinstance(told.get(key), int)
    }
    if told.get("enable_dp_attention"):
        sizes["dp"] = 1  # replicas of the attention share the tp ranks
    facts = {"dtype": told.get("dtype"), "context": told.get("context_length")}
    return Engine("sglang", told.get("version"), told.get("model_path"), sizes, facts)


def _vllm(told: Mapping[str, Any], models: Any) -> Engine:
    listed = models.get("data", []) if isinstance(models, dict) else []
    first = listed[0] if listed and isinstance(listed[0], dict) else {}
    facts = {"dtype": None, "context": first.get("max_model_len")}
    return Engine("vllm", str(told["version"]), first.get("id"), {}, facts)


def _where(request: Request, engine: Engine, folder: Path) -> Path:
    """Where the engine writes its traces."""
    if request.trace_dir is not None:
        if not request.trace_dir.is_dir():
            raise UsageError(f"--trace-dir {request.trace_dir}: there is no such folder here")
        return request.trace_dir
    if engine.name == "vllm":
        raise UsageError(
            "--server: vLLM writes its traces where it was told at its start "
            "(--profiler-config.torch_profiler_dir, or VLLM_TORCH_PROFILER_DIR); "
            "name that folder with --trace-dir"
        )
    own = folder / "engine"
    own.mkdir(mode=0o777)
    return own


def _record(
    client: Client,
    engine: Engine,
    request: Request,
    where: Path,
    on_progress: Callable[[str], None],
) -> None:
    content: dict[str, Any] = {}
    if engine.name == "sglang":
        content = {
            "output_dir": str(where.absolute()),
            "activities": ["CPU", "GPU"],
            "record_shapes": True,
            "with_stack": False,
        }
        if request.steps is not None:
            content["num_steps"] = request.steps
    # SGLang answers only after the asked number of steps.
    _accepted(engine, client.post("/start_profile", content, request.timeout_s))
    if request.duration_s is None:
        return
    try:
        _pass_time(request.duration_s, on_progress)
    finally:
        status = client.post("/stop_profile", {}, request.timeout_s)
    if status >= 300:
        raise InputError(f"/stop_profile answered {status}; look into the server's log")


def _pass_time(seconds: float, on_progress: Callable[[str], None]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        on_progress(f"recording, {left:.0f} s left; the engine needs requests meanwhile")
        time.sleep(min(left, 0.5))


def _accepted(engine: Engine, status: int) -> None:
    if status < 300:
        return
    if status == 404 and engine.name == "vllm":
        raise MissingDataError(
            "this vLLM server was started without its profiler; start it with "
            '--profiler-config \'{"profiler": "torch", "torch_profiler_dir": "/a/folder"}\' '
            "(before v0.13: VLLM_TORCH_PROFILER_DIR=/a/folder)"
        )
    raise InputError(f"/start_profile answered {status}; look into the server's log")


# -- files ----------------------------------------------------------------------------


def _files(where: Path) -> dict[Path, tuple[int, int]]:
    """Trace files of ranks below a folder, with size and time of change."""
    found = {}
    for path in where.rglob("*"):
        if _TRACE.search(path.name) and not _NO_RANK.search(path.name) and path.is_file():
            status = path.stat()
            found[path] = (status.st_size, status.st_mtime_ns)
    return found


def wait_for_files(
    where: Path, before: Mapping[Path, tuple[int, int]], expected: int | None, timeout_s: float
) -> list[Path]:
    """The files that have come since, once all of them are whole.

    Raises:
        InputError: they do not come in time.
    """
    deadline = time.monotonic() + timeout_s
    last: dict[Path, tuple[int, int]] = {}
    changed = time.monotonic()
    while time.monotonic() < deadline:
        now = {path: state for path, state in _files(where).items() if before.get(path) != state}
        if now != last:
            last, changed = now, time.monotonic()
        settled = time.monotonic() - changed > SETTLED_S
        enough = len(now) >= expected if expected is not None else settled
        if now and enough and settled and all(map(is_whole, now)):
            return sorted(now)
        time.sleep(POLL_S)
    wanted = f"{expected} trace files" if expected else "trace files"
    raise InputError(
        f"{where}: {len(last)} of {wanted} came in {timeout_s:g} s; "
        "had the engine requests meanwhile, and is this where it writes?"
    )


def is_whole(path: Path) -> bool:
    """Whether a trace has been written to its end."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as stream:
            tail = b""
            while block := stream.read(1 << 20):
                tail = (tail + block)[-64:]
    except (OSError, EOFError, zlib.error):
        return False
    return tail.rstrip().endswith((b"}", b"]"))


def rank_key(path: Path) -> tuple[int, ...]:
    """Orders files by rank: by the replica, stage and shard in their names, or by the rank."""
    rank = _RANK.search(path.name)
    if rank is not None:
        return (int(rank[1]),)
    places = {axis: int(number) for axis, number in _PLACE.findall(path.name)}
    return tuple(places.get(axis, 0) for axis in ("DP", "PP", "TP"))


def _collect(files: Sequence[Path], folder: Path) -> list[manifest.FileEntry]:
    """Copy the files into the run folder, numbered by rank."""
    (folder / "traces").mkdir()
    keys = sorted({rank_key(path) for path in files})
    entries = []
    count: dict[int, int] = {}
    for path in sorted(files, key=lambda item: (rank_key(item), item.name)):
        rank = keys.index(rank_key(path))
        # Several files of one rank: SGLang's prefill and decode apart.
        number = count.get(rank, 0)
        count[rank] = number + 1
        end = ".json.gz" if path.name.endswith(".gz") else ".json"
        name = f"traces/rank-{rank:05}.{number}.pt.trace{end}"
        shutil.copyfile(path, folder / name)
        entries.append(manifest.FileEntry(rank=rank, path=name))
    shutil.rmtree(folder / "engine", ignore_errors=True)
    return entries


def _manifest(
    name: str, request: Request, engine: Engine, entries: Sequence[manifest.FileEntry]
) -> manifest.Manifest:
    sizes = engine.sizes
    ranks = len({entry.rank for entry in entries})
    unknown = dict.fromkeys(("layers", "hidden", "heads", "seq", "vocab", "params"))
    conditions = {
        "workload": {
            "name": engine.name,
            "mode": "serve",
            "model": engine.model,
            "context": engine.facts["context"],
            **unknown,
        },
        "batch": dict.fromkeys(("global", "micro", "microbatches", "concurrency")),
        "precision": engine.facts["dtype"],
        "cache": {"kv": True, "compile": None, "warm": None},
        "parallel": {
            "world_size": ranks,
            "nodes": None,
            **{axis: sizes.get(axis) for axis in ("dp", "tp", "pp", "ep")},
            **dict.fromkeys(("fsdp", "cp", "schedule", "chunks")),
        },
        # The machine is the engine's, which tells nothing of it; the traces name its devices.
        "hardware": None,
        "software": {engine.name: engine.version},
        "environment": None,
        "profiler": {
            "options": {"by": engine.name},
            "warmup": None,
            "active": request.steps,
            "duration_s": request.duration_s,
        },
        "load": None,
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": None,
        "git": None,
        "seed": None,
    }
    axes = {axis: size for axis, size in sizes.items() if size > 1}
    return manifest.Manifest(
        schema=manifest.SCHEMA,
        name=name,
        conditions=conditions,
        topology=manifest.TopologyEntry(world_size=ranks, axes=axes),
        files=list(entries),
    )
