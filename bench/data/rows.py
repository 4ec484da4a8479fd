"""Blocks of text into rows: labels, dense values, keys of categorical values; and bad rows named or counted.

A key is a 64-bit number that stands for a categorical value: a hex string's own value (case and leading zeros do not
count), any other text's hash. Real tables are far too small for two texts to meet (odds of 3e-5 in 2**25 values).
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.data import parse, stream
from bench.data.schema import Schema
from bench.data.stream import Block
from bench.errors import UserError

FAULTS = {  # a line's fault code -> its name in messages and in the manifest
    parse.FIELDS: "wrong field count",
    parse.BAD_LABEL: "bad label",
    parse.BAD_INTEGER: "not an integer",
    parse.BAD_NUMBER: "not a number",
    parse.BAD_HEX: "not a hex value",
    parse.BAD_QUOTE: "bad quote",
    parse.CUT: "truncated last line",
}
KINDS = {"integer": parse.INTEGER, "number": parse.NUMBER, "hex": parse.HEX, "string": parse.STRING}


@dataclass
class Rows:
    """The good rows of a block, in file order."""

    label: np.ndarray  # (rows,) uint8
    dense: np.ndarray  # (rows, n_dense) float32 raw values, missing 0
    keys: np.ndarray  # (n_sparse, rows) uint64, parse.MISSING where missing
    group: np.ndarray  # (rows,) uint64; zeros where the schema has no group
    number: np.ndarray  # (rows,) int64, index of the line among all lines of all files
    bad: Counter  # fault -> lines left out
    padded: int  # lines filled up
    block: Block


class RowParser:
    """Turns blocks of the files' text into Rows. Safe to call from several threads at once."""

    def __init__(self, schema: Schema, files: list[Path], skip_bad: bool = False, pad: bool = False):
        """
        Raises:
            UserError: a file's header lacks a column of the schema, or differs from the first file's.
        """
        self.schema, self.files, self.skip_bad, self.pad = schema, files, skip_bad, pad
        self.quote = ord(schema.quote) if schema.quote else -1
        self.columns = list(schema.columns or _header(schema, files))
        self.kinds = np.zeros(len(self.columns), np.int8)
        self.slots = np.zeros(len(self.columns), np.int64)
        for names, kind in (
            ([schema.label], parse.LABEL),
            (schema.dense, KINDS[schema.dense_type]),
            (schema.sparse, KINDS[schema.sparse_type]),
            ([schema.group] if schema.group else [], parse.GROUP),
        ):
            for slot, name in enumerate(names):
                index = self.columns.index(name)
                self.kinds[index], self.slots[index] = kind, slot
        self.markers = (*_texts(schema.missing), *_texts(schema.positive), *_texts(schema.negative))

    def __call__(self, block: Block) -> Rows:
        """
        Raises:
            UserError: a bad row, unless skip_bad; names file, line and fault.
        """
        n = block.lines
        label, group = np.zeros(n, np.uint8), np.zeros(n, np.uint64)
        dense = np.zeros((n, len(self.schema.dense)), np.float32)
        keys = np.empty((len(self.schema.sparse), n), np.uint64)
        fault, field = np.empty(n, np.uint8), np.empty(n, np.int32)
        text = np.frombuffer(block.text, np.uint8)
        padded = parse.parse_lines(
            text, ord(self.schema.separator), self.quote, self.schema.strip, self.pad, block.open_end,
            self.kinds, self.slots, self.markers, label, dense, keys, group, fault, field,
        )  # fmt: skip
        number = np.arange(block.start.row, block.start.row + n)
        bad: Counter = Counter()
        faulty = np.flatnonzero(fault)
        if len(faulty):
            if not self.skip_bad:
                raise UserError(self._message(block, int(faulty[0]), fault[faulty[0]], field[faulty[0]]))
            bad.update(FAULTS[code] for code in fault[faulty])
            good = fault == parse.OK
            label, dense, group, number = label[good], dense[good], group[good], number[good]
            keys = np.ascontiguousarray(keys[:, good])
        return Rows(label, dense, keys, group, number, bad, padded, block)

    def _message(self, block: Block, line: int, fault: int, field: int) -> str:
        text = block.text.split(b"\n", line + 1)[line].rstrip(b"\r")
        where = f"{self.files[block.start.file]} line {block.start.line + line + 1 + self.schema.header}"
        expected = len(self.columns)
        skip = "--bad-rows skip leaves such rows out"
        if fault == parse.CUT:
            return f"{where}: truncated last line (no line end, {field} of {expected} fields); {skip}"
        first = block.start.line + line == 0 and not self.schema.header
        if first and text.lower().startswith(self.columns[0].lower().encode()):
            return f"{where} is a header, schema {self.schema.name} is for files without one: remove it, or {skip}"
        if fault == parse.FIELDS:
            pads = field < expected and text and not self.pad
            short = "; --pad-short-rows fills up rows whose empty ends were stripped" if pads else ""
            return f"{where}: wrong field count, {field} instead of {expected}; {skip}{short}"
        name = self.columns[field]
        value = self._field(text, field)
        shown = repr(value[:40]) if value else "nothing"
        if fault == parse.BAD_LABEL:
            allowed = ", ".join((*self.schema.positive, *self.schema.negative))
            return f"{where}: label {shown} in column {name} is none of {allowed}; {skip}"
        many = " of at most 18 digits" if fault == parse.BAD_INTEGER and value.lstrip("+-").isdecimal() else ""
        return f"{where}: {FAULTS[fault]}{many}, {shown} in column {name}; {skip}"

    def _field(self, text: bytes, field: int) -> str:
        """A field of a line, cut out as the parser does it."""
        line, at, start, end = np.frombuffer(text + b"\n", np.uint8), 0, 0, 0
        for _ in range(min(field + 1, len(self.columns))):
            if at < len(line):
                start, end, at, _ = parse.field_bounds(
                    line, at, ord(self.schema.separator), self.quote, self.schema.strip
                )
            else:
                start = end = 0  # a padded field
        return text[start:end].decode(errors="replace")


def transformed(dense: np.ndarray) -> np.ndarray:
    """log(1 + max(x, 0)) of raw dense values, float32; a missing value is 0 before and after."""
    return np.log1p(np.maximum(dense, np.float32(0)))


def _texts(texts: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def _header(schema: Schema, files: list[Path]) -> list[str]:
    headers = []
    for file in files:
        names = stream.first_line(file).decode(errors="replace").split(schema.separator)
        headers.append([name.strip().strip(schema.quote or "") for name in names])
        absent = [name for name in schema.used if name not in headers[-1]]
        if absent:
            raise UserError(f"{file} has no column {absent[0]} in its header; schema {schema.name} needs it")
        if headers[-1] != headers[0]:
            raise UserError(f"the header of {file} differs from that of {files[0]}: give files of one table")
    return headers[0]
