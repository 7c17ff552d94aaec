"""TFRecord files and the ``tf.train.Example`` messages in them, without TensorFlow.

Special: the two formats are small and fixed, so reading them needs this page instead of a package of
gigabytes. Only the features that are asked for are decoded.

A file is a row of records: length (8 bytes, little-endian), its masked CRC-32C (4), the content, the
content's masked CRC-32C (4). A message is protocol-buffer wire format: Example{1: Features{1: map of text to
Feature{1: bytes | 2: floats | 3: integers}}}, each of the three a list in field 1.

Absent: the content's checksum (at Python's speed it costs more than decoding the pictures; the length's one,
on which finding the next record depends, is checked), compressed files, and writing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_HEADER, _FOOTER = 12, 4
_CRC32C = 0x82F63B78  # the Castagnoli polynomial, bits reversed
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


def records(path: Path) -> Iterator[tuple[int, int]]:
    """Where each record's content starts in the file and how many bytes it has.

    Raises:
        ValueError: Not a TFRecord file, or cut short; names it.
    """
    size = path.stat().st_size
    position = 0
    with path.open("rb") as file:
        while position < size:
            file.seek(position)
            header = file.read(_HEADER)
            if len(header) < _HEADER:
                raise ValueError(f"{path} ends inside a record at byte {position}; copy it again")
            length, checksum = struct.unpack("<QI", header)
            if masked_crc32c(header[:8]) != checksum:
                raise ValueError(
                    f"{path} is not an uncompressed TFRecord file, or is damaged, at byte {position} (the checksum of a"
                    " record's length is wrong); copy it again"
                )
            if position + _HEADER + length + _FOOTER > size:
                raise ValueError(
                    f"{path} ends inside the record at byte {position}, which has {length} bytes; copy it again"
                )
            yield position + _HEADER, length
            position += _HEADER + length + _FOOTER


def masked_crc32c(content: bytes) -> int:
    """CRC-32C as TFRecord stores it: rotated right by 15 bits, plus a constant. Slow; meant for a few bytes."""
    remainder = 0xFFFFFFFF
    for byte in content:
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (_CRC32C if remainder & 1 else 0)
    remainder ^= 0xFFFFFFFF
    return (((remainder >> 15) | (remainder << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def features(record: bytes) -> dict[str, memoryview]:
    """The features of an Example, by name, not decoded yet.

    Raises:
        ValueError: Not a message.
    """
    found: dict[str, memoryview] = {}
    for _, group in _members(memoryview(record), 1):
        for _, entry in _members(group, 1):
            parts = dict(_members(entry, 1, 2))
            if 1 in parts:
                found[str(parts[1], "utf-8")] = parts.get(2, memoryview(b""))
    return found


def texts(feature: memoryview) -> list[bytes]:
    """A feature's byte strings.

    Raises:
        ValueError: It holds numbers, or is damaged.
    """
    strings = []
    for kind, values in _members(feature, 1, 2, 3):
        if kind != 1:
            raise ValueError("it holds numbers, expected byte strings")
        strings += [bytes(value) for _, value in _members(values, 1)]
    return strings


def numbers(feature: memoryview) -> NDArray[Any]:
    """A feature's numbers, flat: float32 or int64.

    Raises:
        ValueError: It holds byte strings, or is damaged.
    """
    for kind, values in _members(feature, 1, 2, 3):
        if kind == 1:
            raise ValueError("it holds byte strings (a compressed encoding?), expected plain numbers")
        return _floats(values) if kind == 2 else _integers(values)
    return np.zeros(0, np.float32)


def _floats(values: memoryview) -> NDArray[np.float32]:
    parts = [value for number, _, value in _fields(values) if number == 1 and isinstance(value, memoryview)]
    content = b"".join(parts)  # one packed run, or one piece for each number
    if len(content) % 4:
        raise ValueError(f"its floats have {len(content)} bytes, not a multiple of 4")
    return np.frombuffer(content, "<f4").astype(np.float32)


def _integers(values: memoryview) -> NDArray[np.int64]:
    found: list[int] = []
    for number, _, value in _fields(values):
        if number != 1:
            continue
        if isinstance(value, int):
            found.append(value)
            continue
        position = 0
        while position < len(value):
            integer, position = _varint(value, position)
            found.append(integer)
    return np.array(found, np.uint64).astype(np.int64)  # negative ones are stored as two's complement


def _members(message: memoryview, *wanted: int) -> Iterator[tuple[int, memoryview]]:
    """The fields of these numbers, each of which has to be a run of bytes."""
    for number, wire_type, value in _fields(message):
        if number in wanted:
            if not isinstance(value, memoryview) or wire_type != _BYTES:
                raise ValueError("it is not a tf.train.Example message")
            yield number, value


def _fields(message: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Number, wire type and value of each field."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        wire_type = tag & 7
        if wire_type == _VARINT:
            integer, position = _varint(message, position)
            yield tag >> 3, wire_type, integer
            continue
        if wire_type == _BYTES:
            length, position = _varint(message, position)
        elif wire_type in (_FIXED32, _FIXED64):
            length = 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"it is not a message (wire type {wire_type})")
        if position + length > len(message):
            raise ValueError("it is cut short")
        yield tag >> 3, wire_type, message[position : position + length]
        position += length


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """An integer of at most 64 bits in groups of seven, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise ValueError("it is cut short")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
    raise ValueError("it holds a number of more than 64 bits")
