"""Serving engines, against a stand-in that answers as the engines' documents say."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.profile.raw import RawRun
from tracekit.cli.app import run as command
from tracekit.core.errors import InputError, MissingDataError, UsageError
from tracekit.io.load import load
from tracekit.profile import server

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "tp2" / "traces"


class StandIn:
    """A server with a profiler of its own; each test says what it answers."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.on_start: Callable[[dict[str, Any]], int] = lambda content: 200
        self.on_stop: Callable[[], int] = lambda: 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = outer.answers.get(self.path)
                self._answer(404 if found is None else 200, json.dumps(found).encode())

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                content = json.loads(self.rfile.read(size) or b"{}")
                outer.asked.append((self.path, content))
                start = self.path == "/start_profile"
                self._answer(outer.on_start(content) if start else outer.on_stop(), b"")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SETTLED_S", 0.3)
    monkeypatch.setattr(server, "POLL_S", 0.02)


def serving(answers: dict[str, Any]) -> Iterator[StandIn]:
    stand_in = StandIn(answers)
    thread = threading.Thread(target=stand_in.http.serve_forever, daemon=True)
    thread.start()
    yield stand_in
    stand_in.http.shutdown()
    stand_in.http.server_close()
    thread.join()


@pytest.fixture
def sglang() -> Iterator[StandIn]:
    info = {"tp_size": 2, "pp_size": 1, "dp_size": 1, "dtype": "bfloat16", "version": "0.5.3",
            "model_path": "a/model", "context_length": 4096}  # fmt: skip
    yield from serving({"/get_server_info": info})


@pytest.fixture
def vllm() -> Iterator[StandIn]:
    models = {"data": [{"id": "a/model", "max_model_len": 2048}]}
    yield from serving({"/version": {"version": "0.13.0"}, "/v1/models": models})


def write_later(target: Path, rank: int, after_s: float = 0.0) -> None:
    """As an engine does: in its own time, and not at once."""

    def write() -> None:
        time.sleep(after_s)
        data = (SAMPLE / f"rank-{rank:05}.0.pt.trace.json.gz").read_bytes()
        with target.open("wb") as out:
            out.write(data[: len(data) // 2])
            out.flush()
            time.sleep(0.6)  # longer than a folder takes to be settled
            out.write(data[len(data) // 2 :])

    threading.Thread(target=write, daemon=True).start()


def quiet(line: str) -> None:
    pass


def test_steps_of_sglang(tmp_path: Path, sglang: StandIn) -> None:
    def start(content: dict[str, Any]) -> int:
        where = Path(content["output_dir"])
        for rank in (1, 0):
            write_later(where / f"1764520000.1-TP-{rank}.trace.json.gz", rank, 0.1 * rank)
        (where / "1764520000.1-TP-0-memory.pickle").write_text("")
        return 200

    sglang.on_start = start
    out = tmp_path / "run"
    assert command(["profile", "--server", sglang.url, "--steps", "5", "-o", str(out)]) == 0
    ((path, content),) = sglang.asked  # it stops by itself
    assert path == "/start_profile"
    assert content["num_steps"] == 5
    assert content["record_shapes"] is True
    raw = RawRun(out)
    assert [file.rank for file in raw.manifest.files] == [0, 1]
    conditions = raw.manifest.conditions
    assert conditions["workload"]["name"] == "sglang"
    assert conditions["workload"]["model"] == "a/model"
    assert conditions["workload"]["context"] == 4096
    assert conditions["precision"] == "bfloat16"
    assert conditions["parallel"]["tp"] == 2
    assert conditions["software"] == {"sglang": "0.5.3"}
    assert conditions["profiler"]["active"] == 5
    run = load(out)
    assert run.ranks == (0, 1)
    assert run.topology.axes == {"tp": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_stretch_of_time_of_vllm(tmp_path: Path, vllm: StandIn) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    old = traces / "host_7.1.pt.trace.json.gz"
    shutil.copyfile(SAMPLE / "rank-00000.0.pt.trace.json.gz", old)

    def stop() -> int:
        for rank in (0, 1):
            write_later(traces / f"dp0_pp0_tp{rank}_rank{rank}.99.pt.trace.json.gz", rank)
        with gzip.open(traces / "host_8.async_llm.99.pt.trace.json.gz", "wb") as front:
            front.write(b"{}")
        return 200

    vllm.on_stop = stop
    request = server.Request(url=vllm.url, duration_s=0.2, trace_dir=traces)
    before = time.monotonic()
    server.run(request, tmp_path / "run", on_progress=quiet)
    assert time.monotonic() - before > 0.2
    assert [path for path, _ in vllm.asked] == ["/start_profile", "/stop_profile"]
    raw = RawRun(tmp_path / "run")
    assert [file.rank for file in raw.manifest.files] == [0, 1]
    assert raw.manifest.conditions["software"] == {"vllm": "0.13.0"}
    assert raw.manifest.conditions["profiler"]["duration_s"] == 0.2
    assert load(tmp_path / "run").ranks == (0, 1)
    assert old.exists()


def test_the_engine_is_stopped_after_an_interrupt(
    tmp_path: Path, vllm: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float, on_progress: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "_pass_time", interrupted)
    request = server.Request(url=vllm.url, duration_s=5.0, trace_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        server.run(request, tmp_path / "run", on_progress=quiet)
    assert [path for path, _ in vllm.asked] == ["/start_profile", "/stop_profile"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "give either --duration SECONDS or --steps N"),
        ({"steps": 3, "duration_s": 1.0}, "give either --duration SECONDS or --steps N"),
        ({"steps": 3}, "vLLM does not count steps over HTTP"),
        ({"duration_s": 1.0}, "name that folder with --trace-dir"),
        ({"duration_s": 1.0, "trace_dir": Path("/no/where")}, "there is no such folder here"),
    ],
)
def test_requests_that_make_no_sense(
    tmp_path: Path, vllm: StandIn, options: dict[str, Any], says: str
) -> None:
    request = server.Request(url=vllm.url, **options)
    with pytest.raises(UsageError, match=says):
        server.run(request, tmp_path / "run", on_progress=quiet)
    assert vllm.asked == []
    assert list(tmp_path.iterdir()) == []


def test_vllm_without_its_profiler_says_how_to_start_it(tmp_path: Path, vllm: StandIn) -> None:
    vllm.on_start = lambda content: 404
    request = server.Request(url=vllm.url, duration_s=1.0, trace_dir=tmp_path)
    with pytest.raises(MissingDataError, match="started without its profiler"):
        server.run(request, tmp_path / "run", on_progress=quiet)


def test_files_that_do_not_come(tmp_path: Path, sglang: StandIn) -> None:
    request = server.Request(url=sglang.url, steps=3, timeout_s=0.5)
    with pytest.raises(InputError, match=r"0 of 2 trace files came in 0\.5 s"):
        server.run(request, tmp_path / "run", on_progress=quiet)
    assert list(tmp_path.iterdir()) == []


def test_no_server_and_other_servers(tmp_path: Path) -> None:
    request = server.Request(url="http://127.0.0.1:1", steps=1)
    with pytest.raises(InputError, match="no answer"):
        server.run(request, tmp_path / "run", on_progress=quiet)
    with pytest.raises(UsageError, match="give a URL such as"):
        server.Client("localhost:8000")
    other = serving({"/": {}})
    stand_in = next(other)
    with pytest.raises(InputError, match="neither SGLang"):
        server.describe(server.Client(stand_in.url))
    next(other, None)


def test_ranks_by_name() -> None:
    names = ["x-TP-1-PP-0.trace.json.gz", "x-TP-0-PP-1.trace.json.gz", "x-TP-0-PP-0.trace.json.gz"]
    ordered = sorted(map(Path, names), key=server.rank_key)
    assert [path.name[:11] for path in ordered] == ["x-TP-0-PP-0", "x-TP-1-PP-0", "x-TP-0-PP-1"]
    assert server.rank_key(Path("dp0_pp0_tp3_rank3.1.pt.trace.json.gz")) == (3,)


def test_half_a_file_is_not_whole(tmp_path: Path) -> None:
    data = (SAMPLE / "rank-00000.0.pt.trace.json.gz").read_bytes()
    half, whole = tmp_path / "half.json.gz", tmp_path / "whole.json.gz"
    half.write_bytes(data[: len(data) // 2])
    whole.write_bytes(data)
    plain = tmp_path / "plain.json"
    plain.write_text('{"traceEvents": [')
    assert [server.is_whole(path) for path in (half, whole, plain)] == [False, True, False]
