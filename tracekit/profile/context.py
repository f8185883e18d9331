"""``tracekit.profile(...)``: recording a loop of one's own from within the program."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tracekit.core.errors import UsageError
from tracekit.io import manifest
from tracekit.profile import launch, parts, script

if TYPE_CHECKING:
    from tracekit.profile.session import Session


class Profile:
    """Records some steps of a loop; every rank of the job opens one and calls :meth:`step`.

    Example:
        >>> with tracekit.profile("my-run", warmup=2, active=4) as profiler:  # doctest: +SKIP
        ...     for batch in loader:
        ...         train(batch)
        ...         profiler.step()
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        warmup: int = 1,
        active: int = 3,
        repeat: int = 1,
        force: bool = False,
    ) -> None:
        for name, value, least in (
            ("warmup", warmup, 0),
            ("active", active, 1),
            ("repeat", repeat, 1),
        ):
            if value < least:
                raise UsageError(f"{name}={value}: must be at least {least}")
        self.out = Path(out)
        self._cycle, self._force = (warmup, active, repeat), force
        self._session: Session | None = None

    def __enter__(self) -> Profile:
        from tracekit.profile import recorder
        from tracekit.profile.session import Cycle, Session, meet, shared

        recorder.prepare()
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        folder = shared(self._prepare)
        self._session = Session(folder, Cycle(*self._cycle))
        meet(f"entered {folder.name}")
        if self._cycle[0] == 0:
            self._session.start()
        return self

    def _prepare(self) -> Path:
        """Rank 0 makes the folder in which all ranks write."""
        launch.check_output(self.out, self._force)
        folder = self.out.absolute().with_name(f".{self.out.name}.{os.getpid()}")
        folder.mkdir(parents=True)
        return folder

    def step(self) -> None:
        """Say that a step of the loop has ended."""
        if self._session is None:
            raise UsageError("step() outside of the with statement")
        self._session.step()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        from tracekit.profile.session import meet

        session, self._session = self._session, None
        assert session is not None
        # After an error the other ranks may never come.
        session.close(together=kind is None)
        if kind is None:
            meet(f"left {session.folder.name}")
        if session.rank == 0:
            self._finish(session.folder)

    def _finish(self, folder: Path) -> None:
        found = parts.read(folder)
        try:
            if not any(part.files for part in found):
                return
            shutil.rmtree(folder / parts.FOLDER)
            manifest.write(folder, script.together(self.out.name, found, None))
            launch.publish(folder, self.out)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
