"""Points of progress that are no collective: batches, backward, optimizer steps, and the user's own."""

from __future__ import annotations

import functools
from typing import Any

from desync.journal.layout import Header, RecordType
from desync.recorder import backwards, compiler, exceptions
from desync.recorder import session as sessions
from desync.recorder.session import Session, quiet
from desync.recorder.sites import Sites

MAX_TEXT = 200
MAX_NUMBER = 1 << 62
"""Whole numbers below this are kept as they are, without an entry in the heap for each."""


class Marks:
    """The wrappers around loaders, backward and optimizers."""

    def __init__(self, session: Session, sites: Sites) -> None:
        self.session = session
        self.sites = sites
        self._launched = backwards.of(session)
        self._labels: dict[str, int] = {}

    def install(self) -> None:
        """Wrap all of them; each on its own, so that one that this torch lacks does not cost the others."""
        for part in (self._loader, self._backward, self._optimizer):
            part()

    @quiet("marking batches")
    def _loader(self) -> None:
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        original = _BaseDataLoaderIter.__next__

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807 - it takes the place of one
            serial = self._fetch(iterator)
            try:
                batch = original(iterator)
            except StopIteration:
                self._exhausted(iterator, serial)
                raise
            self._fetched(serial)
            return batch

        setattr(_BaseDataLoaderIter, "__next__", __next__)  # noqa: B010 - an assignment would be a type error

    @quiet("marking batches")
    def _fetch(self, iterator: Any) -> int | None:
        if sessions.current is not self.session:
            return None  # a forked child that reads its own loader
        writer = self.session.writer
        number = iterator._num_yielded
        if number == 0:
            writer.words[Header.EXHAUSTED] = 0
        return writer.mark(
            RecordType.FETCH,
            name=self._loader_name(iterator),
            value=number + 1,
            site=self.sites.here(4),
            thread=self.session.thread(),
        )

    @quiet("marking batches")
    def _fetched(self, serial: int | None) -> None:
        if serial is not None:
            self.session.writer.left(serial)
            self.session.writer.count(Header.BATCHES)

    @quiet("marking batches")
    def _exhausted(self, iterator: Any, serial: int | None) -> None:
        if serial is None:
            return
        writer, batches = self.session.writer, iterator._num_yielded
        writer.left(serial)
        writer.pass_ended(batches)
        writer.mark(
            RecordType.EXHAUSTED,
            name=self._loader_name(iterator),
            value=batches,
            site=self.sites.here(4),
            thread=self.session.thread(),
        )

    def _loader_name(self, iterator: Any) -> int:
        name = type(getattr(iterator, "_dataset", iterator)).__name__
        number = self._labels.get(name)
        if number is None:
            number = self._labels[name] = self.session.writer.intern("label", [name, None], key=name)
        return number

    @quiet("marking backward")
    def _backward(self) -> None:
        import torch

        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(*arguments: Any, **options: Any) -> None:
            if compiler.is_compiling():
                original(*arguments, **options)
                return
            serial = self._backward_begins()
            try:
                original(*arguments, **options)
            except BaseException as error:
                self._backward_failed(serial, error)
                raise
            self._backward_ends(serial)

        torch.autograd.backward = backward

    @quiet("marking backward")
    def _backward_begins(self) -> int | None:
        session = self.session
        if sessions.current is not session:
            return None
        session.backward_site = site = self.sites.here(4)
        session.writer.count(Header.BACKWARDS)
        sampled = int(self._launched.samples())
        serial = session.writer.mark(RecordType.BACKWARD, value=sampled, site=site, thread=session.thread())
        self._launched.begins(serial)
        return serial

    @quiet("marking backward")
    def _backward_ends(self, serial: int | None) -> None:
        if serial is not None:
            self._launched.ends(serial, failed=False)
            self.session.writer.left(serial)

    @quiet("marking backward")
    def _backward_failed(self, serial: int | None, error: BaseException) -> None:
        if serial is not None:
            self._launched.ends(serial, failed=True)
            exceptions.passing(self.session, error)

    @quiet("marking optimizer steps")
    def _optimizer(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, _optimizer: Any, _arguments: Any, _options: Any) -> None:
        if not compiler.is_compiling():
            self._step()

    @quiet("marking optimizer steps")
    def _step(self) -> None:
        if sessions.current is self.session:
            self.session.writer.count(Header.STEPS)
            self.session.writer.mark(RecordType.STEP, thread=self.session.thread())

    @quiet("recording the user's marks")
    def user(self, name: str, value: object) -> None:
        """Record a mark of the user's."""
        name = _text(name)
        writer = self.session.writer
        number = value if type(value) is int and 0 <= value < MAX_NUMBER else None
        text = None if value is None or number is not None else _text(value)
        label = writer.intern("label", [name, text], key=(name, text))
        writer.mark(RecordType.USER, name=label, value=number, site=self.sites.here(5), thread=self.session.thread())


def _text(value: object) -> str:
    try:
        return str(value)[:MAX_TEXT]
    except Exception as error:  # noqa: BLE001 - __str__ of the user's class may do anything
        return f"(a {type(value).__name__} that cannot be written: {type(error).__name__})"


installed: Marks | None = None


def user_mark(name: str, value: object = None) -> None:
    """Behind :func:`desync.mark`: does nothing where this process is no rank, nor in compiled code, which it must not break."""
    if installed is not None and sessions.current is installed.session and not compiler.is_compiling():
        installed.user(name, value)
