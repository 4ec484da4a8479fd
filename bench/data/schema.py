"""What the columns of a table are: a small YAML, read into a Schema.

name: criteo              # goes into the manifest
separator: "\\t"
header: false             # true: the first line names the columns; those that the YAML does not name are ignored
columns: [label, I1, ..]  # all columns in the file's order; only where there is no header
quote: '"'                # optional; a quoted field may hold separators, not line ends
strip: false              # optional; blanks around a field do not count
missing: ["?"]            # optional; fields that mean "missing", besides the empty one
label: {column: label, positive: ["1"], negative: ["0"]}
dense: {type: integer | number, columns: [..]}
sparse: {type: hex | string, columns: [..]}
group: patient            # optional; rows that share this value go to the same split
"""

from dataclasses import dataclass
from pathlib import Path

import jsonschema
import yaml

from bench.errors import UserError

FOLDER = Path(__file__).with_name("schemas")

_TEXTS = {"type": "array", "items": {"type": "string"}}
_COLUMNS = {**_TEXTS, "uniqueItems": True}
_FORM = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "separator", "label", "dense", "sparse"],
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"},
        "separator": {"type": "string", "pattern": "^[\\x00-\\x7f]$"},
        "header": {"type": "boolean"},
        "columns": {**_COLUMNS, "minItems": 1},
        "quote": {"type": "string", "pattern": "^[\\x00-\\x7f]$"},
        "strip": {"type": "boolean"},
        "missing": _TEXTS,
        "label": {
            "type": "object",
            "additionalProperties": False,
            "required": ["column", "positive", "negative"],
            "properties": {
                "column": {"type": "string"},
                "positive": {**_TEXTS, "minItems": 1},
                "negative": {**_TEXTS, "minItems": 1},
            },
        },
        "dense": {
            "type": "object",
            "additionalProperties": False,
            "required": ["columns"],
            "properties": {"type": {"enum": ["integer", "number"]}, "columns": _COLUMNS},
        },
        "sparse": {
            "type": "object",
            "additionalProperties": False,
            "required": ["columns"],
            "properties": {"type": {"enum": ["hex", "string"]}, "columns": {**_COLUMNS, "minItems": 1}},
        },
        "group": {"type": "string"},
    },
}


@dataclass(frozen=True)
class Schema:
    """The columns of a table; fields as in the YAML above."""

    name: str
    separator: str
    label: str
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    dense: tuple[str, ...]
    dense_type: str
    sparse: tuple[str, ...]
    sparse_type: str
    header: bool = False
    columns: tuple[str, ...] | None = None  # None: the header says
    quote: str | None = None
    strip: bool = False
    missing: tuple[str, ...] = ()
    group: str | None = None

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the columns that are read: label, dense, sparse, group."""
        return (self.label, *self.dense, *self.sparse, *((self.group,) if self.group else ()))


def load(name: str) -> Schema:
    """A schema by the name of a file in schemas/ ("criteo") or by the path of a YAML file.

    Raises:
        UserError: no such schema, or the file does not fit; names file, field and fault.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.yaml")))
        raise UserError(f"no schema {name}: give the path of a .yaml file or one of {known}")
    try:
        form = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"schema {path} is not YAML: {' '.join(str(error).split())}") from None
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(_FORM).iter_errors(form))
    if error is not None:
        field = ".".join(str(part) for part in error.absolute_path) or "the whole"
        raise UserError(f"schema {path} does not fit at {field}: {error.message}")
    schema = Schema(
        name=form["name"],
        separator=form["separator"],
        label=form["label"]["column"],
        positive=tuple(form["label"]["positive"]),
        negative=tuple(form["label"]["negative"]),
        dense=tuple(form["dense"]["columns"]),
        dense_type=form["dense"].get("type", "number"),
        sparse=tuple(form["sparse"]["columns"]),
        sparse_type=form["sparse"].get("type", "string"),
        header=form.get("header", False),
        columns=tuple(form["columns"]) if "columns" in form else None,
        quote=form.get("quote"),
        strip=form.get("strip", False),
        missing=tuple(form.get("missing", ())),
        group=form.get("group"),
    )
    _check(schema, path)
    return schema


def _check(schema: Schema, path: Path) -> None:
    if schema.header == (schema.columns is not None):
        raise UserError(f"schema {path}: give either header: true or the list of columns, one of the two")
    twice = {name for name in schema.used if schema.used.count(name) > 1}
    if twice:
        raise UserError(f"schema {path} uses column {sorted(twice)[0]} twice: name it once")
    if schema.columns is not None:
        absent = [name for name in schema.used if name not in schema.columns]
        if absent:
            raise UserError(f"schema {path}: column {absent[0]} is not in its list of columns")
    both = set(schema.positive) & set(schema.negative)
    if both:
        raise UserError(f"schema {path}: label {sorted(both)[0]!r} is both positive and negative")
