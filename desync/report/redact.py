"""What a report leaves out before it is shown to strangers: home directories, names of machines, addresses, secrets."""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from desync.report.model import Report

REPLACED = "***"

_HOME = re.compile(r"(?<![\w.])(?:/(?:(?:\w+/)?home|Users|scratch)/[^/\s:'\"]+|/root)(?=[/\s:'\"]|$)")
_NAMED = (
    r"[\w.-]*(?:token|secret|passw(?:or)?d|passphrase|\bpwd|api[_-]?key|access[_-]?key|credential|auth|cookie|\bsig\b|signature)"
    r"[\w.-]*"
)
_ASSIGNED = re.compile(
    rf"(?i)\b({_NAMED}['\"]?\s*[=:]\s*)(?!{re.escape(REPLACED)})"
    r"(?:\"[^\"]*\"|'[^']*'|(?:bearer|basic|token|digest)\s+[^\s'\"]+|[^\s'\"&]+)"
)
_OPTION = re.compile(rf"(?i)(--?{_NAMED}\s+)(?!-)\S+")
_SECRET_OPTION = re.compile(rf"(?i)--?{_NAMED}")
_VARIABLE = re.compile(r"\b([A-Z][A-Z0-9_]{2,}=)(?:\"[^\"]*\"|'[^']*'|\S+)")
_URL_LOGIN = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@]+@")
_KEYS = re.compile(r"\b(?:(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA)[A-Za-z0-9_-]{8,}|eyJ[\w-]{8,}\.[\w.-]+)")
_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")
_ADDRESS_6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])")
_LOCAL = re.compile(r"127\.\d+\.\d+\.\d+|0\.0\.0\.0")

_RULES = (
    (_URL_LOGIN, rf"\1{REPLACED}@"),
    (_VARIABLE, rf"\1{REPLACED}"),
    (_ASSIGNED, rf"\1{REPLACED}"),
    (_OPTION, rf"\1{REPLACED}"),
    (_KEYS, REPLACED),
    (_HOME, "~"),
)


class Redaction:
    """Replaces what is private in texts of one report; the same name gets the same substitute everywhere."""

    def __init__(self, report: Report) -> None:
        nodes = {entry.node for entry in report.ranks if entry.node} | set(report.job.nodes)
        self._numbers = {node: f"node-{number}" for number, node in enumerate(sorted(nodes))}
        # Longer names first: one may be the beginning of another.
        self._pattern = _names(sorted(nodes, key=lambda node: (-len(node), node)))
        self._known: dict[str, str] = {}

    def text(self, text: str) -> str:
        """The text without what is private."""
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._replaced(text)
        return known

    def _replaced(self, text: str) -> str:
        for pattern, put in _RULES:
            text = pattern.sub(put, text)
        text = _ADDRESS.sub(lambda match: match[0] if _LOCAL.fullmatch(match[0]) else "<address>", text)
        text = _ADDRESS_6.sub(lambda match: "<address>" if _is_address(match[0]) else match[0], text)
        return self._pattern.sub(lambda match: self._numbers[match[0]], text) if self._pattern else text

    def value(self, value: Any) -> Any:
        """A dataclass, tuple or mapping with all texts in it replaced; everything else as it is."""
        if isinstance(value, enum.Enum):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, tuple):
            return tuple(self.value(item) for item in value)
        if isinstance(value, Mapping):
            return {key: self.value(item) for key, item in value.items()}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return type(value)(**{field.name: self.value(getattr(value, field.name)) for field in fields})
        return value


def _is_address(text: str) -> bool:
    """Whether it is an IPv6 address, and not this machine's own or a time of day."""
    try:
        return not ipaddress.IPv6Address(text).is_loopback and text.strip(":") != ""
    except ValueError:
        return False


def redacted(report: Report) -> Report:
    """The report as strangers may see it."""
    redaction = Redaction(report)
    command = _without_values(report.job.command)
    made: Report = redaction.value(dataclasses.replace(report, job=dataclasses.replace(report.job, command=command)))
    return made


def _without_values(command: Sequence[str]) -> tuple[str, ...]:
    """A command line in which an argument after an option with a secret's name is replaced."""
    kept: list[str] = []
    for part in command:
        secret = bool(kept) and _SECRET_OPTION.fullmatch(kept[-1]) is not None and not part.startswith("-")
        kept.append(REPLACED if secret else part)
    return tuple(kept)


def _names(names: Sequence[str]) -> re.Pattern[str] | None:
    parts = "|".join(re.escape(name) for name in names)
    return re.compile(rf"(?<![\w.-])(?:{parts})(?![\w-])") if parts else None
