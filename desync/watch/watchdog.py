"""The loop's logic: look at the ranks, diagnose when something may be wrong, report the first fault, follow it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from desync.model import Certainty, Diagnosis, Evidence, Finding, RankStacks, Status
from desync.report.model import Report, Timing
from desync.watch.judgement import has_recovered, joined, lasted_ns, standstill, still_waits, with_stacks, worth_reporting
from desync.watch.observer import Observer
from desync.watch.pace import Pace
from desync.watch.reporter import Reporter

Diagnose = Callable[[Evidence], Diagnosis]

ALL_STACKS_S = 2.5
"""So that all stacks are there within three seconds of the detection."""
MAX_LATE = 64
LATE_IS_SAID_AFTER = 6
"""So many times ``hang_after`` ranks must have waited for one that is at work before a line says so."""
URGENT_STACKS_S = 0.5
"""When the launcher is about to end the ranks."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found in one attempt."""

    evidence: Evidence
    diagnosis: Diagnosis
    timing: Timing


class Watchdog:
    """Watches one job; :meth:`tick` is called about ten times a second, :meth:`finish` when the job has ended."""

    def __init__(self, observer: Observer, diagnose: Diagnose, reporter: Reporter) -> None:
        self.observer = observer
        self.reporter = reporter
        self._diagnose = diagnose
        self._pace = Pace()
        self._attempt: int | None = None
        self._live: Outcome | None = None
        self._closed: list[Outcome] = []
        self._notes: list[str] = []
        self._faults: set[int] = set()
        self._mentioned: set[tuple[int, ...]] = set()
        self._late: dict[tuple[tuple[int, ...], str, int], Finding] = {}
        """What was said of ranks that are late, by ranks, group and operation."""

    @property
    def standing_since(self) -> int | None:
        """When it was reported that the job cannot go on (epoch ns); None if that was not, or has passed."""
        return self._live.evidence.observed_at if self._live and standstill(self._live.diagnosis) else None

    @property
    def silence_s(self) -> float:
        """Seconds since any rank has recorded something (an operation, a mark, its end), or its process has ended."""
        ends = [end.time for end in self.observer.exits().values() if end.time is not None]
        since_end = (time.time_ns() - max(ends)) / 1e9 if ends else float("inf")
        return min(self._pace.silence(time.monotonic()), since_end)

    @property
    def is_hang(self) -> bool:
        """Whether the job hangs and the reason is at least likely."""
        finding = standstill(self._live.diagnosis) if self._live else None
        return finding is not None and finding.status is Status.HANG and finding.certainty is not Certainty.POSSIBLE

    @property
    def reported_stacks(self) -> dict[int, tuple[RankStacks, ...]]:
        """Stacks that were taken for a reported fault, by attempt."""
        outcomes = [*self._closed, *([self._live] if self._live else [])]
        return {outcome.evidence.job.attempt: outcome.evidence.stacks for outcome in outcomes if outcome.evidence.stacks}

    # --- while the job runs

    def tick(self) -> None:
        """Look at the ranks once."""
        observer = self.observer
        observer.refresh()
        if observer.attempt is None:
            return
        if observer.attempt != self._attempt:
            self._turn_to(observer.attempt)
        now = time.monotonic()
        self._pace.take(observer.pulses(), now)
        urgent = self._see_faults()
        observer.sample()
        if self._pace.is_due(now, urgent=urgent):
            self._look(now)

    def _turn_to(self, attempt: int) -> None:
        if self._attempt is not None:
            self._close(self._attempt)
        self._attempt = attempt
        self._live = None
        self._faults.clear()
        self._late.clear()
        self._pace = Pace()
        self.observer.begin_attempt()

    def _see_faults(self) -> bool:
        """Whether a rank has ended; the stacks of the others are taken at once if it ended badly: they may be ended next."""
        ended = self.observer.ended_ranks()
        new = {rank for rank, bad in ended.items() if bad} - self._faults
        if new:
            self._faults |= new
            if self._live is None:
                self.take_urgent_stacks()
        return bool(ended)

    def take_urgent_stacks(self) -> None:
        """Python frames of all live ranks, quickly: whoever ends the job does not wait."""
        self.observer.take_stacks(self.observer.live_pids(), URGENT_STACKS_S, native=False)

    def take_missing_stacks(self) -> None:
        """Of live ranks of which there is no stack, before they are ended: a slow one may have begun after the report."""
        self.observer.take_missing_stacks(URGENT_STACKS_S)

    def _look(self, begun: float) -> None:
        evidence = self.observer.evidence()
        diagnosis = self._judge(evidence)
        if diagnosis is None:
            self._pace.looked(begun, time.monotonic(), suspected=False)
            return
        self._follow_late(diagnosis, evidence)
        self.observer.watch_closely(diagnosis.awaiting, diagnosis.lingering)
        finding = worth_reporting(diagnosis)
        live = self._live
        if live is not None and standstill(live.diagnosis) is not None:
            self._follow(live, evidence, still_found=finding is not None)
        elif live is not None and (worse := standstill(diagnosis)) is not None:
            self._report(evidence, diagnosis, worse)
        elif live is None and finding is not None:
            self._report(evidence, diagnosis, finding)
        elif not diagnosis.awaiting and not diagnosis.lingering and not self._faults:
            self.observer.drop_stacks()
        suspected = finding is not None or bool(diagnosis.awaiting or diagnosis.lingering)
        self._pace.looked(begun, time.monotonic(), suspected=suspected, at_rest=self._live is not None)

    def _judge(self, evidence: Evidence) -> Diagnosis | None:
        try:
            return self._diagnose(evidence)
        except Exception as error:  # noqa: BLE001 - a defect of the diagnosis must not end the watch over a job that runs
            self._note(f"the diagnosis failed: {type(error).__name__}: {error}")
            return None

    def _report(self, evidence: Evidence, diagnosis: Diagnosis, finding: Finding) -> None:
        """The first fault: report.json at once, again with all stacks, and then on the terminal."""
        observer, detected = self.observer, time.time_ns()
        timing = Timing(diverged_at=_began(finding), detected_after_s=_since(finding, detected))
        self.reporter.announce(self.reporter.write(evidence, diagnosis, timing))
        pids = observer.live_pids()
        first = {rank: pids[rank] for rank in sorted(pids, key=lambda rank: (rank not in finding.culprit_ranks, rank))}
        observer.take_stacks(first, ALL_STACKS_S, native=True)
        timing = replace(timing, stacks_after_s=_since(finding, time.time_ns()))
        evidence = observer.evidence()
        self._live = Outcome(evidence, with_stacks(diagnosis, self._judge(evidence)), timing)
        self.reporter.show(self._write(self._live))

    def _follow(self, live: Outcome, evidence: Evidence, still_found: bool) -> None:
        """What became of the fault that was reported."""
        if has_recovered(live.diagnosis, evidence, still_found=still_found):
            self._recovered(live, evidence)
            self._live = None
            self.observer.drop_stacks()

    def _follow_late(self, diagnosis: Diagnosis, evidence: Evidence) -> None:
        """Note what became of ranks that were late and still at work."""
        for finding in diagnosis.findings:
            at = finding.divergence
            if finding.status is Status.SLOW and at is not None and len(self._late) < MAX_LATE:
                self._late[(finding.culprit_ranks, at.group.name, at.seq)] = finding
                self._mention(finding, evidence)
        for key, finding in list(self._late.items()):
            lasted = lasted_ns(finding, evidence)
            if lasted is not None:
                del self._late[key]
                said = f"{finding.cause.value}: {finding.summary}"
                self._note(f"recovered: who was late came after {lasted / 1e9:.1f} s ({said})")

    def _mention(self, finding: Finding, evidence: Evidence) -> None:
        """One line for whoever looks at a job that stands, and is not called hung because the late rank is at work."""
        began, now = _began(finding), evidence.observed_at
        waits = LATE_IS_SAID_AFTER * evidence.hang_after_ns
        if began is None or now is None or now - began < waits or finding.culprit_ranks in self._mentioned:
            return
        self._mentioned.add(finding.culprit_ranks)
        self.reporter.voice.say(f"waiting for {(now - began) / 1e9:.0f} s: {finding.summary}")

    def _recovered(self, live: Outcome, evidence: Evidence) -> None:
        first = standstill(live.diagnosis) or live.diagnosis.findings[0]
        lasted = lasted_ns(first, evidence)
        after = f"after {lasted / 1e9:.1f} s " if lasted is not None else ""
        text = f"recovered: {after}what was reported while the job ran did complete ({first.cause.value}: {first.summary})"
        self.reporter.voice.say(text)
        self._note(text)

    # --- the end

    def finish(self) -> Report:
        """The last word on the job, written and, if it is new, shown."""
        self.observer.refresh()
        attempt = self.observer.attempt
        if attempt is not None and attempt != self._attempt:
            self._turn_to(attempt)
        self._close(attempt)
        chosen = self._chosen()
        job = replace(self.observer.job, attempt=chosen.evidence.job.attempt)
        merged = replace(chosen.evidence.job, ended=job.ended, exit_code=job.exit_code)
        report = self._write(replace(chosen, evidence=replace(chosen.evidence, job=merged)))
        if report.verdict.status is not Status.HEALTHY:
            self.reporter.show(report)
        return report

    def _chosen(self) -> Outcome:
        """The attempt that the report is of: the last one with a fault, unless the job recovered from it and ended well."""
        last = self._closed[-1]
        failed = next((outcome for outcome in reversed(self._closed) if outcome.diagnosis.findings), last)
        if failed is last:
            self._note_earlier(last)
            return last
        number, fault = failed.evidence.job.attempt, failed.diagnosis.findings[0]
        if self.observer.job.exit_code == 0:
            self._note(f"attempt {number} failed and was restarted ({fault.cause.value}: {fault.summary})")
            return last
        self._note(f"attempt {last.evidence.job.attempt} shows no fault; this is the report of attempt {number}")
        return failed

    def _note_earlier(self, last: Outcome) -> None:
        """Say what earlier attempts had failed of, where the last one failed as well."""
        for outcome in self._closed:
            if outcome is not last and outcome.diagnosis.findings:
                fault = outcome.diagnosis.findings[0]
                self._note(f"attempt {outcome.evidence.job.attempt} had failed before ({fault.cause.value}: {fault.summary})")

    def _close(self, attempt: int | None) -> None:
        """Judge an attempt that is over."""
        evidence = self.observer.evidence(ended=True, attempt=attempt)
        diagnosis = self._judge(evidence) or Diagnosis((), Status.UNKNOWN, {})
        if not diagnosis.findings and self.observer.has_stacks:
            # Where ranks were that came after all, and why some could not be looked at, says nothing of a job that is well.
            self.observer.drop_stacks()
            evidence = self.observer.evidence(ended=True, attempt=attempt)
            diagnosis = self._judge(evidence) or diagnosis
        self._follow_late(diagnosis, evidence)
        live = self._live
        if live is not None and has_recovered(live.diagnosis, evidence, still_found=bool(diagnosis.findings)):
            self._recovered(live, evidence)
            live = None
        if live is None and evidence.job.told_to_end is not None:
            diagnosis = self._with_late(diagnosis, evidence)
        if live is None and diagnosis.status is Status.HEALTHY:
            evidence = self.observer.without_stacks(evidence)
        timing = live.timing if live else _timing(diagnosis)
        self._closed.append(Outcome(evidence, self._last(live, diagnosis), timing))

    def _last(self, live: Outcome | None, diagnosis: Diagnosis) -> Diagnosis:
        return joined(live.diagnosis, diagnosis) if live else diagnosis

    def _with_late(self, diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
        """Who was late, and at work, when the job was told to end: that cannot be seen any more when it has ended."""
        late = tuple(finding for finding in self._late.values() if still_waits(finding, evidence))
        if not late or any(finding.status is not Status.UNKNOWN for finding in diagnosis.findings):
            return diagnosis
        return replace(diagnosis, findings=late, status=late[0].status)

    def _write(self, outcome: Outcome) -> Report:
        return self.reporter.write(outcome.evidence, outcome.diagnosis, outcome.timing, self.notes)

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def told_to_end(self, why: str, since: int | None = None) -> None:
        """Say that the job is being ended from outside: who is killed from now (or ``since``) on is not at fault."""
        job = self.observer.job
        if job.told_to_end is None:
            self.observer.job = replace(job, told_to_end=since or time.time_ns())
        self._note(why)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the report has to say of the run, so far."""
        return tuple(self._notes)

    def add_note(self, text: str) -> None:
        """Something that the report has to say of the run."""
        self._note(text)


def _began(finding: Finding) -> int | None:
    if finding.divergence is not None and finding.divergence.time is not None:
        return finding.divergence.time
    return finding.time


def _since(finding: Finding, now: int) -> float | None:
    began = _began(finding)
    return None if began is None else round(max(0, now - began) / 1e9, 3)


def _timing(diagnosis: Diagnosis) -> Timing:
    return Timing(diverged_at=_began(diagnosis.findings[0])) if diagnosis.findings else Timing()
