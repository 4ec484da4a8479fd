"""One finding of the doctor, and how findings are printed."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """mark: ok; info (a fact, nothing to mend); warn (works, with a limit); fail (the suite will not run)."""

    mark: Literal["ok", "info", "warn", "fail"]
    name: str
    text: str


def show(title: str, findings: list[Finding]) -> None:
    """Print one section, marks and names aligned."""
    print(f"\n{title}")
    for mark, name, text in findings:
        print(f"  {mark:<5} {name:<18} {text}", flush=True)
