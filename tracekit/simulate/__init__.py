"""Traces of a described job, at any number of ranks, with planted faults and the exact truth.

``simulate`` writes a run folder, ``load`` gives the loaded run at once, ``truth`` what is
true of it. All three follow from a :class:`~tracekit.simulate.spec.Spec` and its seed alone.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from tracekit.core.run import Run
from tracekit.simulate import clock, engine, write
from tracekit.simulate import truth as truths
from tracekit.simulate.spec import Spec, checked, from_file, made

__all__ = ["Spec", "from_file", "load", "made", "simulate", "truth"]


def _silent(_: str) -> None:
    pass


def simulate(
    spec: Spec,
    folder: str | Path,
    *,
    force: bool = False,
    compress: bool = True,
    progress: write.Progress = _silent,
) -> Path:
    """Run the job and write its run folder, with ``truth.json``.

    Args:
        spec: the job.
        folder: where to.
        force: replace a run folder that is there.
        compress: whether traces are ``.gz``.
        progress: called with a line at a time.

    Raises:
        UsageError: the spec contradicts itself, or the folder is taken.
    """
    checked(spec)
    folder = Path(folder)
    write.fresh(folder, force)
    progress("running the job")
    timeline = engine.run(spec)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        write.write(timeline, partial, compress=compress, truth_too=True, progress=progress)
        partial.chmod(0o755)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def load(spec: Spec, **options: Any) -> Run:
    """The job as :func:`tracekit.load` gives it, without a folder that stays.

    Args:
        spec: the job.
        options: of ``tracekit.load``.
    """
    from tracekit.api import load as load_run

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        timeline = engine.run(checked(spec))
        write.write(timeline, folder, compress=False, truth_too=False, progress=_silent)
        return load_run(folder, **options)


def truth(spec: Spec) -> dict[str, Any]:
    """What ``truth.json`` holds."""
    timeline = engine.run(checked(spec))
    seen = clock.windows(spec, timeline.step_starts(), timeline.step_ends())
    return truths.of(timeline, clock.clocks(spec), seen)
