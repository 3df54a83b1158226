"""The wait-for graph as boxes on a circle and arrows between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from desync.report.model import WaitEntry
from desync.report.text import rank_set
from desync.report.view import called

MAX_NODES = 12
"""A graph of more sets of ranks is told in words only."""
BOX_WIDTH, BOX_HEIGHT = 132, 34


@dataclass(frozen=True, slots=True)
class Node:
    """A set of ranks that stand in the same edges; ``x`` and ``y`` are the middle of its box."""

    ranks: tuple[int, ...]
    label: str
    x: int
    y: int
    culprit: bool


@dataclass(frozen=True, slots=True)
class Arrow:
    """From those that wait to those that they wait for, from border to border; the label stands at ``label_x``, ``label_y``."""

    x1: int
    y1: int
    x2: int
    y2: int
    label: str
    label_x: int
    label_y: int


@dataclass(frozen=True, slots=True)
class Graph:
    """The drawing, and its size."""

    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    width: int
    height: int


def build_graph(waits: Sequence[WaitEntry], culprits: Sequence[int]) -> Graph | None:
    """None where there are fewer than two edges, or too many nodes for a drawing."""
    if len(waits) < 2:
        return None
    sets = _alike(waits)
    if len(sets) > MAX_NODES:
        return None
    spots = _spots(len(sets))
    width, height = max(x for x, _ in spots) + BOX_WIDTH, max(y for _, y in spots) + BOX_HEIGHT
    nodes = tuple(
        Node(ranks, rank_set(ranks, 16), *spot, bool(set(culprits) & set(ranks)))
        for ranks, spot in zip(sets, spots, strict=True)
    )
    several = len({edge.group for edge in waits}) > 1
    arrows = [
        _arrow(one, other, f"{edge.op} {edge.seq}{f', {called(edge.group)}' if several else ''}")
        for edge in waits
        for one in nodes
        for other in nodes
        if set(one.ranks) <= set(edge.ranks) and set(other.ranks) <= set(edge.missing)
    ]
    return Graph(nodes, tuple(arrows), width, height)


def _alike(waits: Sequence[WaitEntry]) -> list[tuple[int, ...]]:
    """Ranks that stand in the same edges, together."""
    roles: dict[int, list[tuple[int, bool]]] = {}
    for number, edge in enumerate(waits):
        for ranks, waiting in ((edge.ranks, True), (edge.missing, False)):
            for rank in ranks:
                roles.setdefault(rank, []).append((number, waiting))
    sets: dict[tuple[tuple[int, bool], ...], list[int]] = {}
    for rank in sorted(roles):
        sets.setdefault(tuple(roles[rank]), []).append(rank)
    return sorted(map(tuple, sets.values()))


def _spots(count: int) -> list[tuple[int, int]]:
    """The middles of so many boxes on an ellipse, moved into the upper left corner."""
    radius = 90 + 22 * max(0, count - 3)
    angles = [math.pi + 2 * math.pi * number / count for number in range(count)]
    spots = [(round(1.5 * radius * math.cos(angle)), round(radius * math.sin(angle))) for angle in angles]
    left, top = min(x for x, _ in spots) - BOX_WIDTH, min(y for _, y in spots) - BOX_HEIGHT
    return [(x - left, y - top) for x, y in spots]


def _arrow(one: Node, other: Node, label: str) -> Arrow:
    """A little beside the straight line, so that an edge and its reverse do not lie on each other."""
    dx, dy = other.x - one.x, other.y - one.y
    length = math.hypot(dx, dy) or 1.0
    aside_x, aside_y = round(-dy / length * 9), round(dx / length * 9)
    start = _border(one, dx, dy)
    end = _border(other, -dx, -dy)
    return Arrow(
        start[0] + aside_x,
        start[1] + aside_y,
        end[0] + aside_x,
        end[1] + aside_y,
        label,
        round((start[0] + end[0]) / 2 + 2.2 * aside_x),
        round((start[1] + end[1]) / 2 + 2.2 * aside_y) + 4,
    )


def _border(node: Node, dx: float, dy: float) -> tuple[int, int]:
    """Where a line from the middle of a box in this direction leaves it."""
    scale = min(BOX_WIDTH / 2 / abs(dx) if dx else math.inf, BOX_HEIGHT / 2 / abs(dy) if dy else math.inf)
    return round(node.x + dx * scale), round(node.y + dy * scale)
