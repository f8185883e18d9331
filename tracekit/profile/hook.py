"""Inside a user's script: torch loads it like a backend, right after ``import torch``.

It does nothing unless the environment says that ``tracekit profile`` started the
script. Importing this module is cheap; everything else waits for the first step.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from tracekit.profile.agreement import VARIABLE, Agreement

if TYPE_CHECKING:
    from tracekit.profile.session import Session

# Of the real-time signals: nobody else's, and never SIGUSR2, which Kineto takes.
WINDOW_SIGNAL = getattr(signal, "SIGRTMIN", 34) + 7


def autoload() -> None:
    """Called by torch at the end of its import."""
    given = os.environ.get(VARIABLE)
    if given:
        Hook(Agreement(**json.loads(given))).install()


class Hook:
    """Watches one process of a script for steps."""

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._session: Session | None = None
        self._optimizer: int | None = None
        self._ours = False  # a use of torch's profiler that is our own
        self._broken = False
        self._pid = 0  # of the process that the session is of

    def install(self) -> None:
        """Take up the clock that was agreed on, and watch for a profiler of the script's own."""
        self._watch_profilers()
        atexit.register(self._exit)
        agreed = self._agreement
        if agreed.window is not None:
            self._keep_window(*agreed.window)
        elif agreed.step_of is None:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            register_optimizer_step_post_hook(self._optimizer_stepped)
        elif ":" in agreed.step_of:
            module, _, name = agreed.step_of.partition(":")
            _when_imported(module, name, self._stepping)
        else:
            from torch.nn.modules.module import register_module_forward_hook

            register_module_forward_hook(self._module_ran)

    # -- clocks ---------------------------------------------------------------------

    def _optimizer_stepped(self, optimizer: object, *_: object) -> None:
        # A script may have several; the first one that steps is the clock.
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if self._optimizer == id(optimizer):
            self._step()

    def _module_ran(self, module: object, *_: object) -> None:
        if type(module).__name__ == self._agreement.step_of:
            self._step()

    def _stepping(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self._step()
            return result

        return stepping

    def _keep_window(self, start_s: float, length_s: float) -> None:
        """Start and stop at the same time on all ranks, on the thread that runs the script."""
        if threading.current_thread() is not threading.main_thread():
            return
        due = [start_s, start_s + length_s]

        handled = threading.Event()

        def act(number: int, frame: FrameType | None) -> None:
            if _is_rank():
                self._safely(self._turn_window)
            handled.set()

        def tick() -> None:
            # Before the time has come, and not in the handler: these imports take seconds.
            if _may_be_rank():
                self._started().prepare()
            for at in due:
                time.sleep(max(at - time.time(), 0.0))
                handled.clear()
                signal.pthread_kill(threading.main_thread().ident or 0, WINDOW_SIGNAL)
                handled.wait()

        signal.signal(WINDOW_SIGNAL, act)
        threading.Thread(target=tick, daemon=True).start()

    def _turn_window(self) -> None:
        """Open the window, or close it: all of it counts as one step."""
        session = self._started()
        if session.recording:
            session.step()
            session.close()
        else:
            session.start()

    def _step(self) -> None:
        self._safely(lambda: self._started().step())

    def _safely(self, act: Callable[[], None]) -> None:
        """A script never fails because it is recorded: the recording ends instead."""
        if self._broken:
            return
        try:
            act()
        except Exception as error:  # noqa: BLE001  (whatever it is, it is not the script's)
            self._broken = True
            if self._session is not None:
                self._session.abandon(f"recording failed: {type(error).__name__}: {error}")

    # -- the session ----------------------------------------------------------------

    def _started(self) -> Session:
        if self._session is None:
            # Late: this imports much of torch, and the script's own set-up comes first.
            from tracekit.profile.session import Cycle, Session

            agreed = self._agreement
            cycle = Cycle(agreed.warmup, agreed.active, agreed.repeat)
            if agreed.window is not None:
                cycle = Cycle(warmup=0, active=1, repeat=1)
            self._session = Session(Path(agreed.folder), cycle, self._using_profiler)
            self._pid = os.getpid()
        return self._session

    def _exit(self) -> None:
        """At the end of the script, also after an exception: keep what is there."""
        session = self._session
        if session is not None and self._pid == os.getpid():
            self._safely(session.close)

    # -- the script's own profiler -----------------------------------------------------

    @contextlib.contextmanager
    def _using_profiler(self) -> Iterator[None]:
        self._ours = True
        try:
            yield
        finally:
            self._ours = False

    def _watch_profilers(self) -> None:
        """Two profilers at once crash the process: when the script starts its own, ours ends."""
        import torch.autograd.profiler as low
        import torch.profiler.profiler as high

        for owner in (high._KinetoProfile, low.profile):
            _wrap_init(owner, self._step_aside)

    def _step_aside(self) -> None:
        if self._ours:
            return
        session = self._started()
        if session.closed:
            return
        session.notes.append("the script has a profiler of its own; tracekit stepped aside")
        self._safely(session.close)


def _wrap_init(owner: Any, before: Callable[[], None]) -> None:
    original = owner.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        before()
        original(self, *args, **kwargs)

    owner.__init__ = init


def _may_be_rank() -> bool:
    """Whether this process may do the script's work: a launcher does not."""
    return "torch.distributed.run" not in sys.modules or "RANK" in os.environ


def _is_rank() -> bool:
    """Whether this process does the script's work: not a launcher, nor a helper of a rank."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return True
    return _may_be_rank() and multiprocessing.parent_process() is None


# -- functions of modules that are not imported yet ----------------------------------


def _when_imported(
    module: str, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Wrap a function, or a method as ``Class.method``, as soon as its module is there."""

    def patch(loaded: ModuleType) -> None:
        owner: Any = loaded
        *outer, last = name.split(".")
        for part in outer:
            owner = getattr(owner, part)
        setattr(owner, last, wrapper(getattr(owner, last)))

    if module in sys.modules:
        patch(sys.modules[module])
    else:
        sys.meta_path.insert(0, _Finder(module, patch))


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the import of one module end with a call."""

    def __init__(self, module: str, then: Callable[[ModuleType], None]) -> None:
        self._module, self._then = module, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
