"""DistributedDataParallel: forward marks, bucket layouts and the names of their parameters."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, finalize, ref

from desync.journal.layout import Flag, Header, RecordType
from desync.recorder import buckets, compiler, exceptions
from desync.recorder.groups import Groups
from desync.recorder.session import Session, quiet
from desync.recorder.sites import Sites

MAX_NAMES = 6
"""Parameter names in a bucket's label; the module's own entry has all."""
LAYOUT_LOOKS = 6
"""Forwards after the first in which the reducer is asked whether it has rebuilt its buckets."""
FIRST_LOG = 4
LOGGED = frozenset(
    {
        "iteration",
        "bucket_cap_bytes",
        "gradient_as_bucket_view",
        "broadcast_buffers",
        "comm_hook",
        "total_parameter_size_bytes",
        "unused_parameter_size",
        "can_set_static_graph",
        "has_rebuilt_buckets",
        "rebuilt_bucket_sizes",
        "avg_forward_compute_time",
        "avg_backward_compute_time",
        "avg_backward_comm_time",
        "avg_backward_compute_comm_overlap_time",
    }
)
"""What is kept of ``_get_ddp_logging_data``, which costs some 12 µs: asked before the 4th, 11th, 22nd, 44th … forward."""


@dataclass(slots=True)
class Watched:
    """What is known of one DDP module."""

    name: str
    title: str
    """What its buckets' labels call it: "" for the process's first module."""
    group: str
    parameters: list[ref[Any]]
    """Weakly: a parameter's hooks may refer to the module, which could then never be freed."""
    elements: list[int]
    names: list[str]
    launches: buckets.Launches
    layout: list[list[int]] = field(default_factory=list)
    looks_left: int = LAYOUT_LOOKS
    label: int = 0
    """Of its forwards' marks."""
    forward: int = 0
    """Serial number of the forward's mark."""
    forwards: int = 0
    """Those of which the backward synchronises."""
    next_log: int = FIRST_LOG
    """Before which of them torch's logger is asked again."""


class Ddp:
    """The wrappers around ``DistributedDataParallel``; each calls the original whatever happens to its own part."""

    def __init__(self, session: Session, groups: Groups, sites: Sites) -> None:
        self.session = session
        self.groups = groups
        self.sites = sites
        self._watched: WeakKeyDictionary[Any, Watched] = WeakKeyDictionary()
        self._made: dict[str, int] = {}
        """How many modules of each class there have been."""

    def install(self) -> None:
        """Wrap the class.  Raises AttributeError where a torch lacks what is wrapped; what was wrapped until then stays."""
        from torch.nn.parallel import DistributedDataParallel

        for name, wrapper in (
            ("_ddp_init_helper", self._around_init),
            ("_pre_forward", self._around_pre_forward),
            ("_post_forward", self._around_post_forward),
            ("register_comm_hook", self._around_comm_hook),
            ("_inside_ddp_forward", self._around_inside_forward),
        ):
            setattr(DistributedDataParallel, name, wrapper(getattr(DistributedDataParallel, name)))

    def _around_init(self, original: Any) -> Any:
        @functools.wraps(original)
        def _ddp_init_helper(ddp: Any, parameters: Any, expect_sparse: Any, names: Any, *rest: Any, **options: Any) -> Any:
            result = original(ddp, parameters, expect_sparse, names, *rest, **options)
            self._built(ddp, list(parameters), list(expect_sparse), dict(names or {}))
            return result

        return _ddp_init_helper

    def _around_pre_forward(self, original: Any) -> Any:
        @functools.wraps(original)
        def _pre_forward(ddp: Any, *inputs: Any, **options: Any) -> Any:
            if compiler.is_compiling():
                return original(ddp, *inputs, **options)
            self._forward_begins(ddp)
            result = original(ddp, *inputs, **options)
            self._forward_prepared(ddp)
            return result

        return _pre_forward

    def _around_inside_forward(self, original: Any) -> Any:
        """See the exceptions of the module's forward without a frame of ours on its stack."""

        @functools.wraps(original)
        def _inside_ddp_forward(ddp: Any) -> Any:
            inside = original(ddp)
            return inside if compiler.is_compiling() else _Forward(inside, self.session)

        return _inside_ddp_forward

    def _around_post_forward(self, original: Any) -> Any:
        @functools.wraps(original)
        def _post_forward(ddp: Any, output: Any) -> Any:
            result = original(ddp, output)
            if not compiler.is_compiling():
                self._forward_ends(ddp)
            return result

        return _post_forward

    def _around_comm_hook(self, original: Any) -> Any:
        @functools.wraps(original)
        def register_comm_hook(ddp: Any, state: object, hook: Any) -> Any:
            return original(ddp, state, self._labelled(ddp, hook) or hook)

        return register_comm_hook

    @quiet("reading DDP's buckets")
    def _built(self, ddp: Any, parameters: list[Any], expect_sparse: list[bool], names: dict[int, str]) -> None:
        if not buckets.active:
            buckets.activate()
        name = self._free_name(type(ddp.module).__name__)
        watched = Watched(
            name=name,
            title=f" of {name}" if sum(self._made.values()) > 1 else "",
            group=self.groups.find(ddp.process_group).name,
            parameters=[ref(parameter) for parameter in parameters],
            elements=[parameter.numel() for parameter in parameters],
            names=[names.get(index, f"parameter {index}").lstrip(".") for index in range(len(parameters))],
            launches=buckets.Launches(parameters=len(parameters)),
        )
        self._watched[ddp] = watched
        buckets.modules.append(watched.launches)
        finalize(ddp, _forget, watched.launches).atexit = False
        watched.launches.unused_map = self._text(f"DDP's map of used parameters{watched.title}")
        self._set_layout(ddp, watched, _initial_layout(ddp, parameters, expect_sparse))

    def _free_name(self, base: str) -> str:
        self._made[base] = number = self._made.get(base, 0) + 1
        return base if number == 1 else f"{base}#{number}"

    def _text(self, text: str) -> int:
        return self.session.writer.intern("text", text, key=text)

    def _set_layout(self, ddp: Any, watched: Watched, layout: list[list[int]]) -> None:
        watched.layout = layout
        watched.launches.buckets = [
            buckets.Bucket(
                elements=sum(watched.elements[index] for index in indices),
                label=self._text(_label(f"{number}{watched.title}", [watched.names[index] for index in indices])),
            )
            for number, indices in enumerate(layout)
        ]
        self.session.writer.intern(
            "ddp",
            {
                "name": watched.name,
                "group": watched.group,
                "parameters": watched.names,
                "buckets": layout,
                "find_unused_parameters": bool(ddp.find_unused_parameters),
                "static_graph": bool(getattr(ddp, "static_graph", False)),
            },
        )

    @quiet("marking DDP's forward")
    def _forward_begins(self, ddp: Any) -> None:
        watched = self._watched.get(ddp)
        if watched is None:
            return
        writer = self.session.writer
        writer.count(Header.FORWARDS)
        kind = RecordType.FORWARD | (Flag.SYNC if ddp.require_backward_grad_sync else 0)
        if not watched.label:
            watched.label = writer.intern("label", [watched.name, None], key=watched.name)
        watched.forward = writer.mark(kind, name=watched.label, site=self.sites.here(4), thread=self.session.thread())

    @quiet("reading DDP's buckets")
    def _forward_prepared(self, ddp: Any) -> None:
        import torch

        watched = self._watched.get(ddp)
        if watched is None or not torch.is_grad_enabled() or not ddp.require_backward_grad_sync:
            return
        buckets.begin(watched.launches)
        watched.forwards += 1
        if watched.forwards >= watched.next_log:
            watched.next_log = 11 if watched.next_log < 11 else 2 * watched.next_log
            self._log(ddp, watched)
        if watched.looks_left and not ddp.find_unused_parameters:
            watched.looks_left -= 1
            self._look_for_rebuilt(ddp, watched)

    def _log(self, ddp: Any, watched: Watched) -> None:
        """Keep what torch itself has measured so far."""
        values = {key: value for key, value in ddp._get_ddp_logging_data().items() if key in LOGGED}
        self.session.writer.intern("ddp_log", {"name": watched.name, "values": values})

    def _look_for_rebuilt(self, ddp: Any, watched: Watched) -> None:
        """Take the layout over once the reducer has rebuilt its buckets in the order in which gradients became ready."""
        data = ddp._get_ddp_logging_data()
        if data.get("has_rebuilt_buckets"):
            layout = [_indices(part, " ") for part in str(data["rebuilt_per_bucket_param_indices"]).split(", ")]
            watched.looks_left = 0
        elif order := data.get("prev_iteration_grad_ready_order_indices"):
            # torch says it one iteration late; until then the same function that it uses tells the new layout.
            parameters = [parameter() for parameter in watched.parameters]
            layout = _rebuilt_layout(ddp, parameters, _indices(str(order), ", "))
        else:
            return
        if layout != watched.layout and sorted(chain.from_iterable(layout)) == list(range(len(watched.parameters))):
            self._set_layout(ddp, watched, layout)

    @quiet("marking DDP's forward")
    def _forward_ends(self, ddp: Any) -> None:
        watched = self._watched.get(ddp)
        if watched is not None and watched.forward:
            self.session.writer.left(watched.forward)

    @quiet("following a comm hook")
    def _labelled(self, ddp: Any, hook: Any) -> Any:
        watched = self._watched.get(ddp)
        if watched is None or not callable(hook):
            return None
        buckets.follow_futures()
        watched.launches.hooked = True

        @functools.wraps(hook)
        def labelled(state: Any, bucket: Any) -> Any:
            return buckets.in_bucket(self._bucket_label(watched, bucket) or 0, hook)(state, bucket)

        return labelled

    @quiet("following a comm hook")
    def _bucket_label(self, watched: Watched, bucket: Any) -> int:
        index = int(bucket.index())
        known = watched.launches.buckets
        if index < len(known) and known[index].elements == bucket.buffer().numel():
            return known[index].label
        return self._text(_label(f"{index}{watched.title}", []))


class _Forward:
    """DDP's own context around the module's forward, which lets failures be seen on their way out."""

    __slots__ = ("_inside", "_session")

    def __init__(self, inside: Any, session: Session) -> None:
        self._inside = inside
        self._session = session

    def __enter__(self) -> Any:
        return self._inside.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        if error is not None:
            exceptions.passing(self._session, error)
        return self._inside.__exit__(kind, error, trace)


def _forget(launches: buckets.Launches) -> None:
    """The module is gone."""
    with contextlib.suppress(ValueError):
        buckets.modules.remove(launches)


def _initial_layout(ddp: Any, parameters: list[Any], expect_sparse: list[bool]) -> list[list[int]]:
    """The layout before the first backward, computed as ``_ddp_init_helper`` does: by size, last parameters first."""
    dist: Any = sys.modules["torch.distributed"]  # private names that its stubs do not export

    if ddp.static_graph or not ddp.find_unused_parameters:
        limits: list[int] = [sys.maxsize]
    else:
        limits = [_first_limit(ddp), ddp.bucket_bytes_cap]
    layout, _ = dist._compute_bucket_assignment_by_size(parameters, limits, expect_sparse)
    return list(reversed(layout))


def _rebuilt_layout(ddp: Any, parameters: list[Any], order: list[int]) -> list[list[int]]:
    dist: Any = sys.modules["torch.distributed"]  # private names that its stubs do not export

    tensors = [parameters[index] for index in order]
    limits = [_first_limit(ddp), ddp.bucket_bytes_cap]
    layout, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors), order)
    return [list(indices) for indices in layout]


def _first_limit(ddp: Any) -> int:
    dist: Any = sys.modules["torch.distributed"]  # private names that its stubs do not export

    default = getattr(ddp, "bucket_bytes_cap_default", True)
    return int(dist._DEFAULT_FIRST_BUCKET_BYTES if default else ddp.bucket_bytes_cap)


def _indices(text: str, separator: str) -> list[int]:
    return [int(part) for part in text.split(separator) if part.strip()]


def _label(number: str, names: Sequence[str]) -> str:
    if not names:
        return f"DDP bucket {number}"
    more = f", … {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"DDP bucket {number}: {', '.join(names[:MAX_NAMES])}{more}"
