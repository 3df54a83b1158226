"""Putting the recorder into a rank, part by part; a part that fails is said in the notes and costs no other.

Two moments matter.  When ``torch.distributed`` has been imported, its functions about groups are wrapped, and a process that
the launcher calls a rank opens its journal, so that its end is seen even if it never gets further.  When
``init_process_group`` is entered, everything else is installed.
"""

from __future__ import annotations

import functools
import os
import platform
import socket
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from desync.recorder import buckets, claims, compiler, exceptions, exits, launched, marks, session
from desync.recorder.calls import NAMES, GroupCalls
from desync.recorder.ddp import Ddp
from desync.recorder.groups import Groups
from desync.recorder.hook import Hook
from desync.recorder.samplers import Samplers
from desync.recorder.session import Session, quiet
from desync.recorder.sites import Sites


class Recorder:
    """All parts of the recorder in one rank."""

    def __init__(self, owner: Session, c10d: Any) -> None:
        self.session = owner
        self.sites = Sites(owner.writer)
        self.groups = Groups(owner.writer, c10d)
        self.calls = GroupCalls(owner, self.groups, self.sites)
        self.hook: Hook | None = None
        self._started = False

    def start(self) -> None:
        """Install every part, once."""
        if self._started:
            return
        self._started = True
        self._part("the process-group hook", self._install_hook)
        self._part("watching DDP", Ddp(self.session, self.groups, self.sites).install)
        marks.installed = marks.Marks(self.session, self.sites)
        self._part("marks", marks.installed.install)
        self._part("looking at samplers", Samplers(self.session).install)
        self._part("keeping torch.compile away from the recorder", compiler.keep_away)

    def retire(self) -> None:
        """Make place for another one: this process is a forked child that has become a rank of its own."""
        buckets.modules.clear()
        if self.hook is not None:
            self.hook.remove()

    def _install_hook(self) -> None:
        self.hook = Hook(self.session, self.groups, self.sites)

    def _part(self, name: str, install: Callable[[], None]) -> None:
        try:
            install()
        except Exception as error:  # noqa: BLE001 - the other parts and the job go on
            self.session.failed(f"installing {name}", error)


recorder: Recorder | None = None


@quiet("installing the recorder")
def distributed_imported(c10d: ModuleType) -> None:
    """Called once, right after torch's own code of ``distributed_c10d`` has run."""
    before = dict(vars(c10d))
    _leave_out_wrapper(c10d)
    _wrap_init(c10d)
    _wrap_others(c10d)
    _replace_copies(c10d, before)
    exceptions.watch_processes()
    rank = launched.claimed_rank()
    if rank is not None:
        _open(rank, launched.world_size(), c10d)


def _replace_copies(c10d: ModuleType, before: dict[str, Any]) -> None:
    """Where ``torch.distributed`` has been imported already, it has its own names for the functions that were wrapped."""
    package = sys.modules.get("torch.distributed")
    for name, wrapper in vars(c10d).items():
        if before.get(name) is not wrapper and package is not None and getattr(package, name, None) is before.get(name):
            setattr(package, name, wrapper)


def _open(rank: int | None, world_size: int | None, c10d: Any) -> Recorder | None:
    """The recorder of this process; opened if it has none yet."""
    global recorder
    owner = session.begin(rank, world_size)
    if owner is None:
        return None
    if recorder is None or recorder.session is not owner:
        if recorder is not None:
            recorder.retire()
        recorder = Recorder(owner, c10d)
        claims.take()  # of whatever it starts, it is the ancestor now
        _describe(owner)
        exits.install(owner)
    return recorder


def _describe(owner: Session) -> None:
    version = getattr(sys.modules.get("torch.torch_version"), "__version__", None) or getattr(
        sys.modules.get("torch.version"), "__version__", None
    )
    owner.writer.intern(
        "info", {"torch": str(version), "python": platform.python_version(), "node": socket.gethostname()}, key="surroundings"
    )


def _wrap_init(c10d: Any) -> None:
    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        active = _entering(c10d, arguments, options)
        serial = active.calls.entered("init_process_group") if active else None
        try:
            result = original(*arguments, **options)
        except BaseException:
            if active:
                active.calls.left(serial, failed=True)
            raise
        if active:
            active.calls.left(serial, failed=False)
            _entered(active, c10d)
        return result

    c10d.init_process_group = init_process_group


@quiet("opening the journal")
def _entering(c10d: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Recorder | None:
    rank, size = launched.asked_for(c10d.init_process_group, arguments, options)
    active = _open(rank, size, c10d)
    if active is not None:
        active.start()
        _set_debug_level()
    return active


@quiet("registering the default group")
def _entered(active: Recorder, c10d: Any) -> None:
    world = c10d._get_default_group()
    active.session.writer.identify(world.rank(), world.size())
    active.groups.find(world)
    active.session.used_gloo = active.groups.any_gloo


def _wrap_others(c10d: Any) -> None:
    for name in NAMES:
        if (original := getattr(c10d, name, None)) is not None:
            setattr(c10d, name, _around_new(original, name))
    _wrap_destroy(c10d)


def _around_new(original: Any, name: str) -> Any:
    @functools.wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        active = recorder if session.current is not None else None
        if active is None:
            return original(*arguments, **options)
        result = active.calls.around(original, name)(*arguments, **options)
        _register(active, result)
        return result

    return call


@quiet("registering a group")
def _register(active: Recorder, group: Any) -> None:
    if hasattr(group, "group_name"):
        active.groups.find(group)
        active.session.used_gloo = active.groups.any_gloo


def _wrap_destroy(c10d: Any) -> None:
    original = c10d.destroy_process_group

    @functools.wraps(original)
    def destroy_process_group(*arguments: Any, **options: Any) -> Any:
        active = recorder if session.current is not None else None
        if active is None:
            return original(*arguments, **options)
        group = options.get("group", arguments[0] if arguments else None)
        members = _forget(active, group, c10d)
        return active.calls.around(original, "destroy_process_group", members)(*arguments, **options)

    c10d.destroy_process_group = destroy_process_group


@quiet("letting go of a group")
def _forget(active: Recorder, group: Any, c10d: Any) -> tuple[int, ...] | None:
    """Let go of the group (None: of all) that is being destroyed; returns its ranks if it is one of several."""
    if group is None or group is c10d.GroupMember.WORLD:
        active.groups.forget(None)
        return None
    ranks = active.groups.find(group).ranks if hasattr(group, "group_name") else None
    active.groups.forget(group)
    return ranks


@quiet("setting torch's debug level")
def _set_debug_level() -> None:
    """Turn on what DESYNC_TORCH_DEBUG asks for; only here, where torch's wrapper has been left out."""
    dist: Any = sys.modules["torch.distributed"]  # its stubs do not export these names
    wanted = os.environ.get("DESYNC_TORCH_DEBUG", "")
    if (level := getattr(dist.DebugLevel, wanted, None)) is not None:
        dist.set_debug_level(level)


def _leave_out_wrapper(c10d: Any) -> None:
    """Keep DETAIL's services for DDP without its wrapper around every collective.

    The wrapper makes collectives several times slower, and with DDP on gloo torch's own logger casts it to a
    ``ProcessGroupGloo`` and crashes (2.13.0, 2.14.1).
    """
    if os.environ.get("DESYNC_TORCH_WRAPPER") == "1" or not hasattr(c10d, "_create_process_group_wrapper"):
        return

    def backend_itself(wrapped_pg: Any, *_arguments: Any, **_options: Any) -> Any:
        return wrapped_pg

    c10d._create_process_group_wrapper = backend_itself
