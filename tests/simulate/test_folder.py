"""Run folders and the command: whole or not at all, the same bytes twice, errors in one line."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tracekit import simulate
from tracekit.cli.app import run as command
from tracekit.core.errors import InputError, UsageError
from tracekit.io.load import load
from tracekit.simulate import Spec


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    spec = Spec(tp=2, pp=2, ep=2, routing="zipf:1", offset_ms=2, faults=("gc:3:5:every=2",))
    one, two = (_digests(simulate.simulate(spec, tmp_path / name)) for name in "ab")
    assert one == two
    other = simulate.made(
        {**json.loads((tmp_path / "a/truth.json").read_text())["spec"], "seed": 1}
    )
    third = _digests(simulate.simulate(other, tmp_path / "c"))
    assert all(one[name] != third[name] for name in one)


def test_a_taken_folder_is_replaced_only_when_told(tmp_path: Path) -> None:
    folder = simulate.simulate(Spec(steps=1), tmp_path / "run")
    with pytest.raises(UsageError, match="use --force"):
        simulate.simulate(Spec(steps=1), folder)
    simulate.simulate(Spec(tp=2, steps=1), folder, force=True)
    assert load(folder).ranks == (0, 1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").touch()
    with pytest.raises(UsageError, match="no run folder"):
        simulate.simulate(Spec(steps=1), tmp_path / "mine", force=True)


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    def fail(line: str) -> None:
        if line == "truth":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate.simulate(Spec(steps=1), tmp_path / "run", progress=fail)
    assert list(tmp_path.iterdir()) == []


def test_the_command_takes_a_file_and_options(tmp_path: Path) -> None:
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps({"tp": 2, "steps": 2, "offset_ms": 5}))
    out = tmp_path / "run"
    arguments = ["--dp", "2", "--fault", "slow-rank:1:1.5", "--set", "groups=megatron"]
    assert command(["simulate", str(spec), "-o", str(out), *arguments]) == 0
    truth = json.loads((out / "truth.json").read_text())
    assert truth["schema"] == "tracekit.truth/1"
    assert truth["culprit"]["ranks"] == [1]
    run = load(out)
    assert run.topology.axes == {"dp": 2, "tp": 2}
    assert run.conditions["workload"]["name"] == "simulated"
    with gzip.open(out / "traces/rank-00003.0.pt.trace.json.gz") as stream:
        assert json.load(stream)["distributedInfo"]["rank"] == 3


def test_toml_is_read_where_python_can(tmp_path: Path) -> None:
    spec = tmp_path / "job.toml"
    spec.write_text('tp = 2\nfaults = ["delay:1:5"]\n[contention]\nattention = 1.5\n')
    if sys.version_info < (3, 11) and importlib.util.find_spec("tomli") is None:
        with pytest.raises(InputError, match="pip install tomli"):
            simulate.from_file(spec)
        return
    read = simulate.from_file(spec)
    assert (read.tp, read.faults, read.contention) == (2, ("delay:1:5",), {"attention": 1.5})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tp": 0}, "tp 0: must be at least 1"),
        ({"tp": "two"}, "Expected `int`"),
        ({"size": 2}, "'size' is not known"),
        ({"pp": 2, "layers": 3}, "cannot be divided by 2 stages"),
        ({"pp": 2, "schedule": "2f2b"}, "choose from"),
        ({"pp": 4, "microbatches": 2}, "fewer than 4 stages"),
        ({"pp": 2, "stage_factors": [1.0]}, "1 for 2 stages"),
        ({"ep": 3}, "experts 8 cannot be divided by ep 3"),
        ({"ep": 2, "routing": "all"}, "choose balanced"),
        ({"faults": ["slow-rank:1:2"]}, "rank 1 does not exist"),
        ({"faults": ["slow-stage:1:2"]}, "stage 1 does not exist"),
        ({"faults": ["hot-expert:1:0.5"]}, "no experts"),
        ({"faults": ["slow-link:0-1:5"]}, "rank 1 does not exist"),
        ({"faults": ["nothing"]}, "known faults"),
        ({"noise_ratio": -1.0}, "not negative"),
        ({"forward_us": 0}, "above 0"),
        ({"contention": {"*": 0.5}}, "at least 1"),
        ({"contention": {"gemm": 1.5}}, "'gemm' is not known; choose from norm, qkv"),
        ({"untraced": ["sends"]}, "'sends' is not known"),
        ({"backend": "gloo", "fsdp": 2}, "gloo has no fsdp"),
        ({"missing": [0]}, "no rank is left"),
        ({"offsets_ns": [1, 2]}, "2 for 1 ranks"),
        ({"groups": "none"}, "Invalid enum value"),
    ],
)
def test_what_makes_no_sense_is_named(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        simulate.made(fields)


@pytest.mark.parametrize("text", ["{", "[1]", '{"tp": 2'])
def test_an_unreadable_description(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"job\.json"):
        simulate.from_file(path)
    with pytest.raises(InputError, match="cannot be read"):
        simulate.from_file(tmp_path / "absent.json")


def test_every_field_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs/simulate.md").read_text()
    tables = text[text.index("## Fields") : text.index("## truth.json")]
    named = set(re.findall(r"`(\w+)`", tables))
    assert {field.name for field in dataclasses.fields(Spec)} <= named


def test_every_part_of_the_truth_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs/simulate.md").read_text()
    named = set(re.findall(r"`(\w+)`", text[text.index("## truth.json") :]))
    assert set(simulate.truth(Spec(steps=1))) <= named
