"""The inner loop of preparation: bytes of a block of lines into numbers, with a fault code for each bad line.

One pass over the bytes, compiled, without the interpreter lock. What the codes mean to a person is in rows.py.
"""

import numba
import numpy as np

SKIP, LABEL, INTEGER, NUMBER, HEX, STRING, GROUP = range(7)  # kinds of columns
OK, FIELDS, BAD_LABEL, BAD_INTEGER, BAD_NUMBER, BAD_HEX, BAD_QUOTE, CUT = range(8)  # faults of a line
MISSING = np.uint64(0xFFFFFFFFFFFFFFFF)  # the key of a missing value; a value with these bits gets the key before it

_TAB, _NEWLINE, _RETURN, _BLANK = 9, 10, 13, 32

_DIGIT = np.full(256, 255, np.uint8)  # value of a byte as a hex digit
for _value, _bytes in enumerate(["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "aA", "bB", "cC", "dD", "eE", "fF"]):
    for _byte in _bytes.encode():
        _DIGIT[_byte] = _value

_options = {"nogil": True, "cache": True, "boundscheck": False}


@numba.njit(**_options)
def parse_lines(
    text, separator, quote, strip, pad, open_end, kinds, slots, markers, label, dense, keys, group, fault, field_of
):
    """Parse all lines of a block.

    Args:
        text: (bytes,) uint8, lines that each end in a newline (and perhaps a carriage return before it).
        separator, quote: byte values; quote -1: none.
        strip: blanks and tabs around a field do not count.
        pad: lines with too few fields are filled up with missing ones.
        open_end: the last line had no line end in the file, so too few fields mean that it is cut.
        kinds, slots: (columns,) what to do with a field and in which column of the output its value goes.
        markers: three (texts (n,) uint8, ends (k,) int64) pairs: missing markers, positive and negative labels.
        label: (lines,) uint8 out. dense: (lines, n_dense) float32 out, raw values, missing 0.
        keys: (n_sparse, lines) uint64 out. group: (lines,) uint64 out.
        fault, field_of: (lines,) out, the fault's code and the field's index (FIELDS and CUT: the number of fields).

    Returns:
        the number of padded lines
    """
    missing, missing_ends, positive, positive_ends, negative, negative_ends = markers
    columns = len(kinds)
    plain = quote < 0 and not strip and len(missing_ends) == 0
    at, padded = 0, 0
    for row in range(len(label)):
        column, code, where, more = 0, OK, 0, True
        while more:
            if plain and column < columns and code == OK:  # the usual field of the usual file in one go
                kind, begin = kinds[column], at
                if kind == HEX:
                    key = np.uint64(0)
                    digit = _DIGIT[text[at]]
                    while digit < 16:
                        key = (key << np.uint64(4)) | np.uint64(digit)
                        at += 1
                        digit = _DIGIT[text[at]]
                    if at - begin <= 15 and (text[at] == separator or text[at] == _NEWLINE):
                        keys[slots[column], row] = key if at > begin else MISSING
                        more = text[at] == separator
                        at += 1
                        column += 1
                        continue
                elif kind == INTEGER:
                    number = np.int64(0)
                    digit = _DIGIT[text[at]]
                    while digit < 10:
                        number = number * 10 + digit
                        at += 1
                        digit = _DIGIT[text[at]]
                    if at - begin <= 18 and (text[at] == separator or text[at] == _NEWLINE):
                        dense[row, slots[column]] = number
                        more = text[at] == separator
                        at += 1
                        column += 1
                        continue
                at = begin
            # any field: its bytes are text[start:end]; afterwards `at` is behind its separator
            if quote >= 0 or strip:
                start, end, at, closed = field_bounds(text, at, separator, quote, strip)
                if not closed and code == OK:
                    code, where = BAD_QUOTE, column
            else:
                start = at
                while text[at] != separator and text[at] != _NEWLINE:
                    at += 1
                end = at
                at += 1
            more = text[at - 1] != _NEWLINE
            if not more and end > start and text[end - 1] == _RETURN:
                end -= 1
            if column < columns and code == OK:
                kind, slot = kinds[column], slots[column]
                if kind != SKIP:
                    absent = start == end or _is_one(text, start, end, missing, missing_ends)
                    if kind == HEX:
                        keys[slot, row] = MISSING
                        if not absent:
                            good, keys[slot, row] = _hex(text, start, end)
                            if not good:
                                code, where = BAD_HEX, column
                    elif kind == INTEGER:
                        dense[row, slot] = 0
                        if not absent:
                            good, dense[row, slot] = _integer(text, start, end)
                            if not good:
                                code, where = BAD_INTEGER, column
                    elif kind == STRING:
                        keys[slot, row] = MISSING if absent else _hash(text, start, end)
                    elif kind == NUMBER:
                        dense[row, slot] = 0
                        if not absent:
                            good, dense[row, slot] = _number(text, start, end)
                            if not good:
                                code, where = BAD_NUMBER, column
                    elif kind == GROUP:
                        group[row] = MISSING if absent else _hash(text, start, end)
                    elif _is_one(text, start, end, positive, positive_ends):
                        label[row] = 1
                    elif _is_one(text, start, end, negative, negative_ends):
                        label[row] = 0
                    else:
                        code, where = BAD_LABEL, column
            column += 1
        if code != BAD_QUOTE and column != columns:
            short, blank = column < columns, column == 1 and start == end
            if short and open_end and row == len(label) - 1:
                code, where = CUT, column
            elif short and pad and code == OK and not blank:
                padded += 1
                for empty in range(column, columns):
                    kind, slot = kinds[empty], slots[empty]
                    if kind == HEX or kind == STRING:
                        keys[slot, row] = MISSING
                    elif kind == INTEGER or kind == NUMBER:
                        dense[row, slot] = 0
                    elif kind == GROUP:
                        group[row] = MISSING
                    elif kind == LABEL:
                        code, where = BAD_LABEL, empty
            elif not (short and pad and not blank):
                code, where = FIELDS, column
        fault[row], field_of[row] = code, where
    return padded


@numba.njit(**_options)
def field_bounds(text, at, separator, quote, strip):
    """(start, end, behind the separator, whether a quote was closed) of the field that begins at `at`."""
    start = at
    while strip and (text[start] == _BLANK or text[start] == _TAB) and text[start] != separator:
        start += 1
    closed, end = True, start
    if quote >= 0 and text[start] == quote:
        start += 1
        end = start
        closed = False
        while text[end] != _NEWLINE:
            if text[end] == quote:
                if text[end + 1] == quote:  # a doubled quote is one inside the field
                    end += 1
                else:
                    closed = True
                    break
            end += 1
        at = end + 1 if closed else end
        rest = at
        while text[at] != separator and text[at] != _NEWLINE:
            at += 1
        for position in range(rest, at):  # nothing but blanks and a carriage return may follow the closing quote
            if text[position] != _RETURN and text[position] != _BLANK:
                closed = False
        return start, end, at + 1, closed
    while text[at] != separator and text[at] != _NEWLINE:
        at += 1
    end = max(at, start)
    while strip and end > start and (text[end - 1] == _BLANK or text[end - 1] == _TAB or text[end - 1] == _RETURN):
        end -= 1
    return start, end, at + 1, closed


@numba.njit(**_options)
def _is_one(text, start, end, texts, ends):
    """Whether text[start:end] is one of the texts[ends[i-1]:ends[i]]."""
    begin = 0
    for stop in ends:
        if stop - begin == end - start:
            same = True
            for i in range(end - start):
                if texts[begin + i] != text[start + i]:
                    same = False
                    break
            if same:
                return True
        begin = stop
    return False


@numba.njit(**_options)
def _hex(text, start, end):
    """(whether it is 1 to 16 hex digits, its value)"""
    value = np.uint64(0)
    if end - start > 16:
        return False, value
    for i in range(start, end):
        digit = _DIGIT[text[i]]
        if digit > 15:
            return False, value
        value = (value << np.uint64(4)) | np.uint64(digit)
    return True, min(value, np.uint64(0xFFFFFFFFFFFFFFFE))


@numba.njit(**_options)
def _integer(text, start, end):
    """(whether it is an integer of at most 18 digits, its value as float32)"""
    first = start + 1 if text[start] == 45 or text[start] == 43 else start
    if first == end or end - first > 18:
        return False, np.float32(0)
    value = 0
    for i in range(first, end):
        digit = np.int64(text[i]) - 48
        if digit < 0 or digit > 9:
            return False, np.float32(0)
        value = value * 10 + digit
    return True, np.float32(-value if text[start] == 45 else value)


@numba.njit(**_options)
def _number(text, start, end):
    """(whether it is a decimal number, perhaps with an exponent, its value as float32)"""
    at = start + 1 if text[start] == 45 or text[start] == 43 else start
    value, digits, scale, point = 0.0, 0, 0, False
    while at < end:
        byte = np.int64(text[at])
        if 48 <= byte <= 57:
            value = value * 10.0 + (byte - 48)
            digits += 1
            scale -= 1 if point else 0
        elif byte == 46 and not point:
            point = True
        else:
            break
        at += 1
    if at < end and digits and (text[at] == 101 or text[at] == 69):  # exponent
        at += 1
        negative = at < end and text[at] == 45
        if at < end and (text[at] == 45 or text[at] == 43):
            at += 1
        exponent, first = 0, at
        while at < end and 48 <= text[at] <= 57 and exponent < 10000:
            exponent = exponent * 10 + (np.int64(text[at]) - 48)
            at += 1
        if at == first:
            return False, np.float32(0)
        scale += -exponent if negative else exponent
    value *= 10.0**scale
    good = digits > 0 and at == end and np.isfinite(np.float32(value))
    return good, np.float32(-value if text[start] == 45 else value)


@numba.njit(**_options)
def _hash(text, start, end):
    """64-bit FNV-1a of the bytes with murmur3's finish, so that all bits of the key are mixed."""
    value = np.uint64(0xCBF29CE484222325)
    for i in range(start, end):
        value = (value ^ np.uint64(text[i])) * np.uint64(0x100000001B3)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return min(value ^ (value >> np.uint64(33)), np.uint64(0xFFFFFFFFFFFFFFFE))
