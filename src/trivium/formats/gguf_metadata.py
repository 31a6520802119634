"""The key/value part of a GGUF file.

Opening a file only walks it: numbers are read, strings and arrays are bounds-checked and their places remembered.
They are decoded when first asked for, since a vocabulary is hundreds of thousands of strings that most readers of a
file never look at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NoReturn

import numpy as np
from msgspec import Struct

from trivium.formats.mapped_file import MappedFile
from trivium.types.errors import ModelFileError

MetadataValue = int | float | bool | str | list["MetadataValue"]

# Bounds on what one file may make us walk or hold. Today's largest vocabularies have 262,144 tokens and 514,906 merges.
MAX_KEYS = 1 << 14
MAX_KEY_BYTES = 512
MAX_STRING_BYTES = 1 << 24
MAX_ARRAY_ITEMS = 1 << 20
MAX_ITEMS_IN_ALL = 1 << 21
MAX_ARRAY_DEPTH = 4
ITEMS_PER_INNER_ARRAY = 16  # what stepping over an array inside an array costs, in strings

BOOL, STRING, ARRAY = 7, 8, 9
NUMBER_DTYPES: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    BOOL: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
NUMBER_SIZES: dict[int, int] = {type: np.dtype(name).itemsize for type, name in NUMBER_DTYPES.items()}

_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")


class Cursor:
    """Reads forward through a mapped file; nothing is read or allocated before it is known to lie inside."""

    def __init__(self, file: MappedFile, position: int = 0) -> None:
        self.file = file
        self.position = position

    @property
    def remaining(self) -> int:
        return self.file.size - self.position

    def fail(self, sentence: str) -> NoReturn:
        raise ModelFileError(f"{self.file.path}: {sentence}")

    def skip(self, nbytes: int, what: str) -> int:
        """Step over `nbytes` bytes that must be inside the file; returns where they begin."""
        start = self.position
        if nbytes > self.remaining:
            self.fail(f"{what} at byte {start} needs {nbytes} bytes, but the file ends after {self.remaining}")
        self.position += nbytes
        return start

    def uint32(self, what: str) -> int:
        return int(_UINT32.unpack_from(self.file.map, self.skip(4, what))[0])

    def uint64(self, what: str) -> int:
        return int(_UINT64.unpack_from(self.file.map, self.skip(8, what))[0])

    def name(self, what: str, max_bytes: int) -> str:
        length = self.uint64(f"the length of {what}")
        if length > max_bytes:
            self.fail(f"{what} is {length} bytes long, the limit is {max_bytes}")
        start = self.skip(length, what)
        return decode_text(self.file, start, length, what)


class Place(Struct, frozen=True):
    """Where a string (its bytes) or an array (its items) lies that has not been decoded yet."""

    type: int
    start: int
    end: int
    item_type: int = 0  # of an array
    count: int = 0  # of an array


class GGUFMetadata(Mapping[str, MetadataValue]):
    def __init__(self, file: MappedFile, values: dict[str, MetadataValue | Place]) -> None:
        self._file = file
        self._values = values

    @classmethod
    def read(cls, cursor: Cursor, count: int) -> GGUFMetadata:
        if count > MAX_KEYS:
            cursor.fail(f"claims {count} metadata keys, the limit is {MAX_KEYS}")
        values: dict[str, MetadataValue | Place] = {}
        walker = _Walker(cursor)
        for index in range(count):
            key = cursor.name(f"the name of metadata key {index} of {count}", MAX_KEY_BYTES)
            if key in values:
                cursor.fail(f"metadata key {key!r} appears twice")
            values[key] = walker.value(key)
        return cls(cursor.file, values)

    def __getitem__(self, key: str) -> MetadataValue:
        value = self._values[key]
        if isinstance(value, Place):
            value = self._values[key] = self._decode(key, value)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _decode(self, key: str, place: Place) -> str | list[MetadataValue]:
        what = f"metadata key {key!r}"
        if place.type == STRING:
            length = place.end - place.start
            if length > MAX_STRING_BYTES:
                raise ModelFileError(
                    f"{self._file.path}: {what} is {length} bytes long, the limit is {MAX_STRING_BYTES}"
                )
            return decode_text(self._file, place.start, length, what)
        data = self._file.map[place.start : place.end]
        try:
            items, _ = _decode_items(data, 0, place.item_type, place.count)
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{self._file.path}: {what} holds text that is not UTF-8: {error.reason}") from None
        return items


def decode_text(file: MappedFile, start: int, length: int, what: str) -> str:
    try:
        return file.map[start : start + length].decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(
            f"{file.path}: {what} is not UTF-8: {error.reason} at byte {start + error.start}"
        ) from None


class _Walker:
    """Steps over values, checking every count and length on the way."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._items = 0

    def value(self, key: str) -> MetadataValue | Place:
        cursor = self._cursor
        what = f"metadata key {key!r}"
        type = cursor.uint32(f"the type of {what}")
        if type in NUMBER_DTYPES:
            start = cursor.skip(NUMBER_SIZES[type], what)
            return _decode_numbers(cursor.file.map[start : cursor.position], type)[0]
        if type == STRING:
            length = cursor.uint64(f"the length of {what}")
            start = cursor.skip(length, what)
            return Place(STRING, start, start + length)
        if type == ARRAY:
            item_type, count = self._array_head(what)
            start = cursor.position
            self._skip_items(what, item_type, count, depth=1)
            return Place(ARRAY, start, cursor.position, item_type, count)
        cursor.fail(f"{what} has the unknown value type {type}")

    def _array_head(self, what: str) -> tuple[int, int]:
        item_type = self._cursor.uint32(f"the item type of {what}")
        count = self._cursor.uint64(f"the item count of {what}")
        self._items += count * (ITEMS_PER_INNER_ARRAY if item_type == ARRAY else 1)
        if count > MAX_ARRAY_ITEMS:
            self._cursor.fail(f"{what} claims {count} items, the limit is {MAX_ARRAY_ITEMS}")
        if self._items > MAX_ITEMS_IN_ALL:
            self._cursor.fail(f"the metadata arrays up to {what} claim more than {MAX_ITEMS_IN_ALL} items together")
        return item_type, count

    def _skip_items(self, what: str, item_type: int, count: int, depth: int) -> None:
        cursor = self._cursor
        if item_type in NUMBER_SIZES:
            cursor.skip(count * NUMBER_SIZES[item_type], what)
        elif item_type == STRING:
            self._skip_strings(what, count)
        elif item_type == ARRAY:
            if depth == MAX_ARRAY_DEPTH:
                cursor.fail(f"{what} nests arrays deeper than {MAX_ARRAY_DEPTH} levels")
            for _ in range(count):
                inner_type, inner_count = self._array_head(what)
                self._skip_items(what, inner_type, inner_count, depth + 1)
        else:
            cursor.fail(f"{what} is an array of the unknown value type {item_type}")

    def _skip_strings(self, what: str, count: int) -> None:
        """The one hot loop of opening a file: a vocabulary's strings can only be stepped over one by one."""
        cursor = self._cursor
        data, position, size = cursor.file.map, cursor.position, cursor.file.size
        unpack = _UINT64.unpack_from
        last = size - 8
        for index in range(count):
            if position > last:
                cursor.fail(f"string {index} of {count} of {what} lies beyond the end of the file ({size} bytes)")
            position += 8 + unpack(data, position)[0]
        if position > size:
            cursor.fail(f"the last of {count} strings of {what} ends beyond the end of the file ({size} bytes)")
        cursor.position = position


def _decode_items(data: bytes, position: int, item_type: int, count: int) -> tuple[list[MetadataValue], int]:
    """Items that `_Walker` has walked already, so every length is good; returns them and where they end."""
    if item_type in NUMBER_SIZES:
        end = position + count * NUMBER_SIZES[item_type]
        return _decode_numbers(data[position:end], item_type), end
    items: list[MetadataValue] = []
    if item_type == STRING:
        unpack = _UINT64.unpack_from
        for _ in range(count):
            start = position + 8
            position = start + unpack(data, position)[0]
            items.append(data[start:position].decode("utf-8"))
        return items, position
    for _ in range(count):
        inner_type = _UINT32.unpack_from(data, position)[0]
        inner_count = _UINT64.unpack_from(data, position + 4)[0]
        inner, position = _decode_items(data, position + 12, inner_type, inner_count)
        items.append(inner)
    return items, position


def _decode_numbers(data: bytes, type: int) -> list[MetadataValue]:
    numbers = np.frombuffer(data, dtype=NUMBER_DTYPES[type])
    values: list[MetadataValue] = (numbers != 0).tolist() if type == BOOL else numbers.tolist()
    return values
