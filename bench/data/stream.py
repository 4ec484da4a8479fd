"""Rows of text as a stream of blocks of whole lines, from plain, gzip and zstandard files, in bounded memory.

A block is a few megabytes of text that end at a line end. Reading and decompression run in a thread of their own.
"""

import queue
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import zstandard
from isal import isal_zlib

from bench.errors import UserError

BLOCK_BYTES = 4 << 20
LONGEST_LINE = 32 << 20  # bytes; beyond, the file is no table of lines
_COMPRESSED_PIECE = 4 << 10  # small: a fault is located to one piece, and well compressed text grows a thousandfold
_BOM = b"\xef\xbb\xbf"
_MAGIC = {  # how compressed files begin
    "gzip": re.compile(rb"\x1f\x8b"),
    "zstandard": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),  # a frame, or one to be skipped
    "bzip2": re.compile(rb"BZh[1-9]1AY&SY"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zip": re.compile(rb"PK\x03\x04"),
}


@dataclass(frozen=True)
class Cursor:
    """A place between two lines of the input."""

    file: int = 0  # index into the list of files
    offset: int = 0  # bytes of (decompressed) text before it
    line: int = 0  # lines of this file before it, the header not counted
    row: int = 0  # lines of all files before it


@dataclass(frozen=True)
class Block:
    """Whole lines, each ending in a line end (added where the file's last one has none)."""

    text: bytes
    lines: int
    start: Cursor
    end: Cursor
    open_end: bool = False  # the last line had no line end: it may be cut


def blocks(
    files: list[Path], header: bool, start: Cursor | None = None, stop_row: int | None = None, cut_rows: int = 0
) -> Iterator[Block]:
    """Blocks of all files in order, read ahead in a thread. Blank lines at a file's end do not count.

    Args:
        header: the first line of each file is skipped.
        start: where to begin (a Block.end of an earlier pass).
        stop_row: end after this many lines of all files together.
        cut_rows: no block crosses a multiple of this number of lines; 0: no such cuts.

    Raises:
        UserError: a file that cannot be read or decompressed; names file, line and fault.
    """
    return _ahead(_blocks(files, header, start or Cursor(), stop_row, cut_rows), depth=2)


def _blocks(files: list[Path], header: bool, start: Cursor, stop_row: int | None, cut_rows: int) -> Iterator[Block]:
    row = start.row
    for index in range(start.file, len(files)):
        first = start if index == start.file else Cursor(file=index)
        line = first.line
        for text, text_offset, open_end in _lines(files[index], header, first):
            offset = text_offset
            for piece, lines in _cut(text, row, stop_row, cut_rows):
                begin = Cursor(index, offset, line, row)
                offset, line, row = offset + len(piece), line + lines, row + lines
                last = open_end and offset == text_offset + len(text)
                yield Block(piece, lines, begin, Cursor(index, offset, line, row), last)
                if row == stop_row:
                    return


def _cut(text: bytes, row: int, stop_row: int | None, cut_rows: int) -> Iterator[tuple[bytes, int]]:
    """(piece, lines) of text that begins at line `row`, up to stop_row, cut at multiples of cut_rows."""
    lines = _line_ends(text)
    stop = min(row + lines, row + lines if stop_row is None else stop_row)
    edges = [row, *(range((row // cut_rows + 1) * cut_rows, stop, cut_rows) if cut_rows else ()), stop]
    if edges == [row, row + lines]:
        yield text, lines
        return
    ends = np.concatenate(([0], np.flatnonzero(np.frombuffer(text, np.uint8) == 10) + 1))
    for begin, end in pairwise(edges):
        yield text[ends[begin - row] : ends[end - row]], end - begin


def _line_ends(text: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == 10))  # faster than bytes.count, and without the lock


def _lines(path: Path, header: bool, start: Cursor) -> Iterator[tuple[bytes, int, bool]]:
    """(whole lines, their offset, whether the last of them had no line end in the file)"""
    rest, offset, lines = b"", start.offset, start.line
    try:
        pieces = _contents(path, start.offset)
        if start.offset == 0:
            rest, offset = _after_head(pieces, header)
        for piece in pieces:
            rest += piece
            if len(rest) < BLOCK_BYTES:
                continue
            end = rest.rstrip(b"\r\n").rfind(b"\n") + 1  # the last line stays: the file may end in blank lines
            if end:
                text = rest[:end]
                yield text, offset, False
                lines += _line_ends(text)
                rest, offset = rest[end:], offset + end
            elif len(rest) > LONGEST_LINE:
                raise UserError(
                    f"{path} line {lines + header + 1} is longer than {LONGEST_LINE >> 20} MB: no table of rows"
                )
    except (isal_zlib.error, zstandard.ZstdError, EOFError) as error:
        lines += _line_ends(rest) + header
        raise UserError(
            f"{path} is corrupt after line {lines} ({error}); nothing beyond can be read, not with --bad-rows "
            "skip either: get the file again"
        ) from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    text = rest.rstrip(b"\r\n")
    if text:
        yield text + b"\n", offset, not rest.endswith(b"\n")


def _after_head(pieces: Iterator[bytes], header: bool) -> tuple[bytes, int]:
    """What follows a byte order mark and the header line in the first pieces, and its offset in the file."""
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= len(_BOM) and (not header or b"\n" in head):
            break
    begin = len(_BOM) if head.startswith(_BOM) else 0
    if header:
        begin = head.find(b"\n") + 1 or len(head)
    return head[begin:], begin


def first_line(path: Path) -> bytes:
    """The first line of a file, without byte order mark and line end.

    Raises:
        UserError: the file cannot be read or decompressed.
    """
    for text, _, _ in _lines(path, False, Cursor()):
        return text.split(b"\n", 1)[0].rstrip(b"\r")
    return b""


def packing(path: Path) -> str | None:
    """How a file is compressed: "gzip", "zstandard" or None.

    Raises:
        UserError: in a way that is not supported.
    """
    with open(path, "rb") as file:
        head = file.read(10)
    for name, magic in _MAGIC.items():
        if magic.match(head):
            if name not in ("gzip", "zstandard"):
                raise UserError(
                    f"{path} is a {name} file, which is not supported: unpack it, or pack it as .gz or .zst"
                )
            return name
    return None


def _contents(path: Path, skip: int) -> Iterator[bytes]:
    """The decompressed bytes of a file from byte `skip` on, in pieces."""
    packed = packing(path)
    with open(path, "rb") as file:
        if packed == "gzip":
            pieces = _decompressed(file, lambda: isal_zlib.decompressobj(wbits=31))
        elif packed == "zstandard":
            new = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # that of zstd --long=31
            pieces = _decompressed(file, new.decompressobj)
        else:
            file.seek(skip)
            skip = 0
            pieces = iter(lambda: file.read(BLOCK_BYTES), b"")
        for piece in pieces:
            if skip >= len(piece):
                skip -= len(piece)
            else:
                yield piece[skip:]
                skip = 0


def _decompressed(file: BinaryIO, new: Callable) -> Iterator[bytes]:
    """Frames one after the other, put together to pieces of block size. EOFError: the last one has no end."""
    unit, parts, size, inside = new(), [], 0, False
    try:
        while compressed := file.read(_COMPRESSED_PIECE):
            if not inside:
                compressed = compressed.lstrip(b"\0")  # files on tape are filled up with zeros
            while compressed:
                parts.append(unit.decompress(compressed))
                size, inside, compressed = size + len(parts[-1]), True, b""
                if unit.eof:
                    compressed, unit, inside = unit.unused_data.lstrip(b"\0"), new(), False
            if size >= BLOCK_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
        if inside:
            raise EOFError("the compressed stream is truncated")
    except (isal_zlib.error, zstandard.ZstdError, EOFError):
        yield b"".join(parts)  # what comes before the fault, so that its line is known
        raise
    yield b"".join(parts)


def _ahead(source: Iterator, depth: int) -> Iterator:
    """The same items, made in a thread that stays at most `depth` items ahead; its exceptions are raised here."""
    items: queue.Queue = queue.Queue(depth)
    stop = threading.Event()

    def put(kind: str, item: object) -> None:
        while not stop.is_set():
            try:
                return items.put((kind, item), timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in source:
                put("item", item)
                if stop.is_set():
                    return
            put("end", None)
        except BaseException as error:
            put("error", error)

    threading.Thread(target=work, daemon=True).start()
    try:
        while True:
            kind, item = items.get()
            if kind == "end":
                return
            if kind == "error":
                raise item
            yield item
    finally:
        stop.set()
