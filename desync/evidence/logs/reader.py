"""Turns the lines of a log into facts, and keeps the facts of different runs in one file apart."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import BinaryIO

from desync.evidence.logs import patterns as p
from desync.evidence.logs.clock import Clock
from desync.evidence.logs.drawn import Drawn
from desync.evidence.logs.facts import Facts, Traceback
from desync.evidence.logs.last_words import WORDS as LAST_WORDS
from desync.evidence.logs.last_words import last_words
from desync.evidence.logs.lines import LineScanner, plain, uncoloured
from desync.evidence.logs.messages import MESSAGES, said_by_torch
from desync.evidence.logs.speakers import (
    Line,
    Speaker,
    bared,
    container,
    line_shape,
    numbers_tasks,
    parse,
    task_number,
    unglued,
    unwrapped,
)
from desync.evidence.logs.stacks import Stacks
from desync.evidence.logs.summary import Summary, merge_repeated
from desync.evidence.logs.tracebacks import Tracebacks
from desync.evidence.logs.victims import is_victim
from desync.model import Frame

FOLLOW_CPP = 14
"""Lines read after one of torch's C++: the desync report, NCCL's last error, a stack's first frames."""
FOLLOW_STACK = 48
FOLLOW_TRACEBACK = 80
FOLLOW_SUMMARY = 12
MAX_END_LINES = 400
"""How many lines before a failure, or at the end, are searched for words of success."""
FIRST_ORDER = 100
"""Where a log names no time, the order of its lines stands for it; it must be possible to lie before the first."""
LEAST_AFTER = 8
"""So many lines after an error, and then words of success, say that the job went on."""
MAX_RAISED = 64
MAX_PARTS = 64
"""Pieces of one line that a container's log has cut."""


WORLD_WORDS = ("world_size", "world size")
"""In the words of programs of every kind: worth a look, and no more."""
WORDS = (
    *(p.TAKEN_DOWN, p.TERMINATED),
    *dict.fromkeys(word for word, _ in MESSAGES if word not in WORLD_WORDS),
    *("Traceback", "-- Process ", "first observed", "Failures:", "ChildFailed", "receive grad", "handling of the", "above exc"),
    *("[repeated ", "orker group", p.LAUNCH, p.STACK_HEAD, *WORLD_WORDS),
)
"""A line that has an anchor and none of these is passed over, unless it is wanted for the line before."""


class LogReader:
    """Reads the logs of one job, file by file, into the facts of each run found in them."""

    def __init__(self) -> None:
        self.runs: list[Facts] = [Facts()]
        self._order = FIRST_ORDER
        self._files = 0

    @property
    def facts(self) -> Facts:
        """Those of the newest run."""
        return self.runs[-1]

    def read(
        self,
        stream: BinaryIO,
        *,
        file_rank: int | None = None,
        file_number: int | None = None,
        file_local: int | None = None,
        year: int | None = None,
    ) -> None:
        """Read a log to its end.  ``year`` is for times without one.

        ``file_rank`` and ``file_local`` are the rank in the job and on its node that the file's name tells, ``file_number`` is
        its number in a set of files.  Raises OSError.
        """
        self._files += 1
        scanner = LineScanner(stream)
        base = Speaker(file=self._files, file_rank=file_rank, file_number=file_number, local=file_local)
        reading = _Reading(self, scanner, base, Clock(year))
        for text in scanner:
            reading.line(text)
        reading.end()

    def next_order(self) -> int:
        """A number that grows from line to line over all files."""
        self._order += 1
        return self._order

    def new_run(self) -> None:
        """What follows is of another run."""
        self.runs.append(Facts())


class _Reading:
    """One file being read."""

    def __init__(self, log: LogReader, scanner: LineScanner, base: Speaker, clock: Clock) -> None:
        self.log, self.scanner, self.base, self.clock = log, scanner, base, clock
        self.tracebacks = Tracebacks()
        self.drawn = Drawn()
        self._waiting_since: int | None = None
        """Where the first of the exceptions ended that wait for more of their message."""
        self.summary = Summary()
        self._parts: dict[str, str] = {}
        self.stacks = Stacks()
        self._timeout_of: dict[Speaker, int] = {}
        """The newest time-out of each speaker, among the first ``_counted``."""
        self._counted = 0
        self._bar: tuple[str, int] | None = None
        self._raw = ""
        self._passed_over = ""
        """The newest line without a word that matters: it may have named a time."""
        self._looked = False
        self._known = 0
        self._failed_at: int | None = None
        self._tasks: int | None = None
        self._numbered: bool | None = None
        """Whether numbers in brackets in front of lines are processes."""
        self._raised: list[tuple[Traceback, int]] = []
        """The newest tracebacks, and where each ends in the file."""
        self._settled = False
        self._cancelled_at: int | None = None
        """Where the scheduler's words end with which it ended the job, or a step of it."""
        self._ended_at: int | None = None
        """Where the newest words of srun or torchrun end on processes whose rank they do not tell."""
        self._left_at: int | None = None
        """Where the newest warning of a process ends that has left its program."""
        self._taken_down = False
        """A process has said that it ends for its error: whatever comes after that, the job did not go on."""
        self._shape: tuple[re.Pattern[str] | None] | None = None

    def _line_shape(self) -> re.Pattern[str] | None:
        """What stands in front of all lines of this file; looked for once, in its beginning."""
        if self._shape is None:
            self._shape = (line_shape(uncoloured(self.scanner.head)),)
        return self._shape[0]

    def _numbered_speaker(self, in_front: str, speaker: Speaker, rest: str) -> tuple[Speaker, str]:
        """The speaker with the number that mpirun has put in front of the line, where it is one of a process."""
        if not in_front.endswith("] ") or speaker.task is not None:
            return speaker, rest
        if self._numbered is None:
            self._numbered = numbers_tasks(uncoloured(self.scanner.head))
        task = task_number(in_front, rest, self._numbered)
        self._numbered = self._numbered or task is not None  # from the first such line on it is sure
        return (replace(speaker, task=task) if task is not None else speaker), rest

    def _count_tasks(self, speaker: Speaker) -> None:
        """Keep srun's largest label; in a file's beginning, which is looked at once, all tasks speak."""
        if speaker.task is None:
            return
        if self._tasks is None:
            label = p.NUMBERED if self._numbered else p.LABEL
            self._tasks = max(map(int, label.findall(plain(self.scanner.head))), default=-1)
        self.log.facts.tasks = max(self.log.facts.tasks, speaker.task, self._tasks)

    def line(self, text: str) -> None:
        """Take in one line."""
        self._take(text)
        self._note_failure()

    def _note_failure(self) -> None:
        """Keep where the newest failure was told, and look around the first one that a launcher tells of."""
        if self.log.facts.failures != self._known:
            self._failed_at = self._place()
            if self.log.facts.ended and not self._known:
                self._look_at_exit()
            self._known = self.log.facts.failures
        if not self.drawn.waiting:
            self._waiting_since = None

    def _place(self) -> int:
        """Where what is being understood ends in the file: an exception that has waited for its message came before."""
        return self.scanner.place if self._waiting_since is None else self._waiting_since

    def _take(self, text: str) -> None:
        self.log.facts.launched = self.log.facts.launched or any(word in text for word in p.LAUNCHER)
        if not self.scanner.followed and not any(word in text for word in WORDS):
            self._passed_over = text
            return
        self._raw = text = unwrapped(text)
        whole = self._whole(text)
        if whole is None:
            return
        in_front, text = bared(whole, self._line_shape())
        speaker, rest = self._numbered_speaker(in_front, *parse(text, self.base))
        if "\\n" in text:
            return  # somebody quotes a message
        self._count_tasks(speaker)
        for each in (self._passed_over, in_front):
            self.clock.see(each)
        self._passed_over = ""
        for who, said in unglued(speaker, rest):
            self._say(who, said)

    def _say(self, speaker: Speaker, text: str) -> None:
        """Take in what one process has written in a line."""
        order = self.log.next_order()
        self.clock.see(text)
        for line in self.drawn.plain(Line(speaker, text, order, self.clock.now(order))):
            self._understand(line)
        if self.drawn.waiting and self._waiting_since is None:
            self._waiting_since = self.scanner.place
        if self.drawn.took:
            self.scanner.follow = max(self.scanner.follow, FOLLOW_TRACEBACK)

    def _understand(self, line: Line) -> None:
        """What a line says, now that it is known who says it."""
        rest = line.text
        self._taken_down = self._taken_down or _takes_down(line)
        if self._in_block(line):
            return
        self._follow(rest)
        self._new_run(rest)
        if p.STACK_HEAD in rest:
            self._begin_stack(line.speaker)
        if rest.find("[repeated ") >= 0 and (found := p.REPEATED.search(rest)):
            self.log.facts.repeated += int(found[1])
        for word, handle in MESSAGES:
            if word in rest and handle(line, self.log.facts):
                self._after(line)
                break

    def _whole(self, text: str) -> str | None:
        """A line of a container's log with the pieces before it; None if it goes on in the next."""
        cut = container(text)
        if cut is None:
            return text
        stream, content, goes_on = cut
        text = self._parts.pop(stream, "") + content
        if goes_on and len(text) < MAX_PARTS * 16384:
            self._parts[stream] = text
            self.scanner.follow = max(self.scanner.follow, 1)
            return None
        return text

    def _in_block(self, line: Line) -> bool:
        """Whether the line belongs to a traceback, a stack or torchelastic's summary that is being read."""
        facts = self.log.facts
        before = len(facts.tracebacks)
        if self.summary.take(line, facts):
            self.scanner.follow = max(self.scanner.follow, FOLLOW_SUMMARY)
            if self.summary.quoted is not None:
                self.tracebacks.take(self.summary.quoted, facts)
            if len(facts.tracebacks) > before:
                merge_repeated(facts)
            return True
        if self.tracebacks.take(line, facts):
            if len(facts.tracebacks) > before:
                self._raised = [*self._raised[1 - MAX_RAISED :], (facts.tracebacks[-1], self._place())]
            self.scanner.follow = max(self.scanner.follow, FOLLOW_TRACEBACK if self.tracebacks.open else 8)
            return False  # its last line can be a message as well
        if line.text.startswith(("#", " #")) and (frame := p.STACK_FRAME.match(line.text)) is not None:
            self.stacks.frame(line.speaker, int(frame[1]), Frame(frame[2], frame[3], int(frame[4])), facts)
            return True
        return False

    def _follow(self, rest: str) -> None:
        wanted = 0
        if p.STACK_HEAD in rest:
            wanted = FOLLOW_STACK
        elif ".cpp:" in rest:
            wanted = FOLLOW_CPP
        elif "ChildFailedError" in rest or p.SUMMARY_ROOT in rest:
            wanted = FOLLOW_SUMMARY
        self.scanner.follow = max(self.scanner.follow, wanted)

    def _new_run(self, rest: str) -> None:
        """A launch after the end of another run, or a restart, begins a new one."""
        started = p.LAUNCH in rest and bool(self.log.facts.ended)
        if started or ("orker group" in rest and p.RESTART.search(rest) is not None):
            self.log.new_run()
            self.log.facts.launched = True
            self._looked, self._known, self._taken_down = False, 0, False
            self._settled, self._raised, self._cancelled_at = False, [], None
            self._timeout_of, self._counted, self.stacks = {}, 0, Stacks()

    def _after(self, line: Line) -> None:
        facts = self.log.facts
        if "CANCELLED AT " in line.text and self._cancelled_at is None:
            self._cancelled_at = self.scanner.place
        if "srun: " in line.text or "death signal" in line.text or "SignalException" in line.text:
            self._ended_at = self.scanner.place
        if line.speaker in facts.left and "destroy" in line.text:
            self._left_at = self.scanner.place
        if len(facts.timeouts) == 1 and not self._settled:
            self._settled = True
            self._settle_tracebacks()
        if len(facts.timeouts) == 1 and self._bar is None:
            self._bar = _last_bar(plain(self.scanner.before) + self._raw) or ("", -1)
        if not self._looked and len(facts.troubles) + len(facts.timeouts) == 1:
            self._looked = True
            self._look_for_end(plain(self.scanner.before), line.order - 1)

    def _settle_tracebacks(self) -> None:
        """At the first time-out: a traceback after which its speaker printed lines of its work was caught."""
        first = self.scanner.start - len(self.scanner.before)
        worked: list[tuple[int, Speaker]] = []
        for raw in self.scanner.before.splitlines(keepends=True) if self._raised else ():
            text = uncoloured(raw).strip("\r\n")
            speaker, rest = parse(bared(text, self._line_shape())[1], self.base)
            if p.WORK.match(rest) is not None and p.AFTERMATH.search(rest[:200]) is None:
                worked.append((first, speaker))
            first += len(raw)
        for traceback, place in self._raised:
            traceback.handled = sum(where >= place and who == traceback.speaker for where, who in worked) > LEAST_AFTER

    def _begin_stack(self, speaker: Speaker) -> None:
        timeouts = self.log.facts.timeouts
        for index in range(self._counted, len(timeouts)):
            self._timeout_of[timeouts[index].speaker] = index
        self._counted = len(timeouts)
        if (newest := self._timeout_of.get(speaker)) is not None:
            self.stacks.begin(speaker, newest, self.log.facts)

    def _look_at_exit(self) -> None:
        """Before the first end of a process that a launcher tells of: whether it was aborted in its exit."""
        text = plain(self.scanner.before)
        self._look_for_sizes(text)
        before, aborted, _ = text.rpartition(p.NO_EXCEPTION)
        if aborted:
            self._look_for_end(before, self.log.next_order())
            self.log.facts.exit_aborted = self.log.facts.finished is not None

    def _look_for_sizes(self, text: str) -> None:
        """gloo ends the process with these words; they come without a traceback, and stand in no line that is read."""
        if (found := p.SIZES_DIFFER.search(text)) is not None:
            self.log.facts.sizes_differ = found[0]

    def _went_on(self, least: int = LEAST_AFTER) -> bool:
        """Whether the job went on after the newest error in this file and says at its end that its work is done."""
        return not self._taken_down and self._failed_at is not None and self._done_after(self._failed_at, least)

    def _passed_tests(self) -> str | None:
        """pytest's last word, where this is a session's log and all tests passed: what failed in it had to, or is quoted."""
        begun = self.scanner.head.find(p.TESTS_BEGIN)
        if self._failed_at is None or not 0 <= begun < self._failed_at:
            return None
        lines = [line for line in plain(self.scanner.after(self._failed_at)).splitlines() if line.strip()]
        return next((found[1] for line in lines[-3:] if (found := p.TESTS_PASSED.match(line)) is not None), None)

    def _done_after(self, place: int, least: int = 0) -> bool:
        """Whether more than so many lines come after a place, and in them words of success that no crash is followed by."""
        text = plain(self.scanner.after(place))
        lines = [line for line in text.splitlines()[-MAX_END_LINES:] if line.strip() and p.AFTERMATH.search(line[:200]) is None]
        firm = [line for line in lines if p.DONE_OF_ALL.search(line[:400].lower()) is None]
        return len(lines) > least and _words_of_end(firm) is not None

    def _look_for_end(self, text: str, order: int) -> None:
        words = _words_of_end([line for line in text.splitlines()[-MAX_END_LINES:] if line])
        bar = _last_bar(text)
        if words is not None or (bar is not None and bar[1] == 100):
            self.log.facts.finished = order
            self.log.facts.finished_text = (words or "100%").strip()[:200]

    def _look_for_last_words(self, text: str) -> None:
        """Ends of processes without a rank, unless the job was tried again and went well; who worked on after one had left."""
        facts, shape = self.log.facts, self._line_shape()
        if self._ended_at is not None and self._done_after(self._ended_at):
            facts.troubles = [each for each in facts.troubles if each.kind not in ("srun_end", "death_signal")]
        if any(word in text for word in LAST_WORDS):
            lines = [parse(bared(line, shape)[1], self.base)[1] for line in text.splitlines() if line.strip()]
            said = [place for place, line in enumerate(lines) if _done(line) and not p.DONE_OF_ALL.search(line[:400].lower())]
            facts.troubles += last_words(lines[max(said, default=-1) + 1 :], self.base, self.log.next_order())
        if self._left_at is not None and facts.finished is None:
            steps = p.STEPS.finditer(plain(self.scanner.after(self._left_at)))
            facts.worked_on = next((found[0] for found in steps if int(found[1]) < int(found[2])), "")

    def end(self) -> None:
        """The file is over."""
        for line in self.drawn.rest():
            self._understand(line)
        self._note_failure()
        self.tracebacks.finish(self.log.facts)
        text = plain(self.scanner.tail)
        facts = self.log.facts
        if facts.failed:
            self._look_for_sizes(text)
        passed = self._passed_tests() if facts.failed and not facts.ended else None
        if facts.failed and not facts.ended and (passed is not None or self._went_on()):
            facts.forget(self.base.file)
        if passed is not None and not facts.failed and facts.finished is None:
            facts.finished, facts.finished_text = self.log.next_order(), passed
        if facts.finished is None and (not facts.failed or (_only_others_failed(facts) and self._went_on(least=0))):
            self._look_for_end(text, self.log.next_order())
        if self._cancelled_at is not None and self._done_after(self._cancelled_at):
            facts.cancelled = ""  # it was a step beside the job's work
        self._look_for_last_words(text)
        bar = _last_bar(text)
        if (
            bar is not None
            and self._bar is not None
            and facts.timeouts
            and bar[0] == self._bar[0]
            and bar[1] > self._bar[1] >= 0
        ):
            facts.moving = f"{bar[0]} {self._bar[1]}% when the others gave up, {bar[1]}% at the end of the log".strip()


def _only_others_failed(facts: Facts) -> bool:
    """Whether all that is told is exceptions of a connection that is none of torch's: those that programs catch and retry."""
    return facts.failures == len(facts.tracebacks) and all(
        is_victim(each.type, each.message)
        and not each.type.rpartition(".")[2].startswith("Dist")
        and not any("/torch/" in frame.file for frame in each.frames)
        for each in facts.tracebacks
    )


def _takes_down(line: Line) -> bool:
    return line.text.startswith(p.TERMINATED) or (p.TAKEN_DOWN in line.text and said_by_torch(line))


def _words_of_end(lines: list[str]) -> str | None:
    """The newest words that say that the work is done, or the last of so many steps."""
    words = next((found[0] for line in reversed(lines) if (found := _done(line)) is not None), None)
    if words is None:
        steps = next((found for line in reversed(lines) if (found := p.STEPS.search(line[:400])) is not None), None)
        words = steps[0] if steps is not None and steps[1] == steps[2] else None
    return words


def _done(line: str) -> re.Match[str] | None:
    low = line[:400].lower()
    return p.DONE.search(low) if any(word in low for word in p.DONE_WORDS) else None


def _last_bar(text: str) -> tuple[str, int] | None:
    """Label and percentage of the last progress bar in a text."""
    place = text.rfind("%|")
    found = p.BAR.match(text, max(0, place - 3)) or p.BAR.match(text, max(0, place - 2)) or p.BAR.match(text, max(0, place - 1))
    if place < 0 or found is None:
        return None
    start = max(text.rfind("\n", 0, found.start()), 0)
    label = text[start : found.start()].strip(" \n:")[-40:]
    return "".join(character for character in label if not character.isdigit()).strip(), int(found[1])
