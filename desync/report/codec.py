"""Frozen dataclasses to and from JSON values, by their type hints.

Enums travel as their values, tuples as arrays, mappings from int as objects with decimal keys.  When decoding, a field that is
missing takes its default if it has one; fields that are not known are ignored; everything else that does not fit is refused.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class DecodeError(ValueError):
    """A JSON value is not what the type wants; the message says where and what was expected."""


def encode(value: Any) -> Any:
    """What ``json.dumps`` takes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return value


def decode(target: type[T], value: Any) -> T:
    """The ``target`` (a dataclass) that ``value`` holds; raises :class:`DecodeError`."""
    return typing.cast("T", _decode(target, value, target.__name__.lower()))


@functools.cache
def _hints(target: type) -> dict[str, Any]:
    return typing.get_type_hints(target)


def _decode(target: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(target)
    if origin in (types.UnionType, typing.Union):
        inner = next(arm for arm in typing.get_args(target) if arm is not type(None))
        return None if value is None else _decode(inner, value, path)
    if origin is tuple:
        return _tuple(typing.get_args(target)[0], value, path)
    if origin is Mapping:
        return _mapping(typing.get_args(target)[1], value, path)
    if dataclasses.is_dataclass(target):
        return _object(target, value, path)
    if issubclass(target, enum.Enum):
        return _member(target, value, path)
    return _plain(target, value, path)


def _tuple(item: Any, value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise DecodeError(f"{path} is no array")
    return tuple(_decode(item, element, f"{path}[{index}]") for index, element in enumerate(value))


def _mapping(item: Any, value: Any, path: str) -> dict[int, Any]:
    if not isinstance(value, dict) or not all(key.isascii() and key.isdecimal() and len(key) < 10 for key in value):
        raise DecodeError(f"{path} is no object with ranks as keys")
    return {int(key): _decode(item, element, f"{path}.{key}") for key, element in value.items()}


def _object(target: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise DecodeError(f"{path} is no object")
    made = {}
    for field in dataclasses.fields(target):
        if field.name in value:
            made[field.name] = _decode(_hints(target)[field.name], value[field.name], f"{path}.{field.name}")
        elif field.default is dataclasses.MISSING:
            raise DecodeError(f"{path}.{field.name} is missing")
    return target(**made)


def _member(target: type[enum.Enum], value: Any, path: str) -> enum.Enum:
    try:
        return target(value)
    except ValueError:
        raise DecodeError(f"{path} is none of {', '.join(member.value for member in target)}") from None


def _plain(target: type, value: Any, path: str) -> Any:
    if target is float and type(value) is int:
        return float(value)
    if type(value) is not target or (isinstance(value, float) and not math.isfinite(value)):
        raise DecodeError(f"{path} is no {target.__name__}")
    return value
