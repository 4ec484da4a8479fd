"""python -m bench.doctor: versions found and supported, the stack tried, what the machine allows.

Exit code 0: the suite runs here (warnings state limits); 1: it does not, and each `fail` line says what to change.
"""

import argparse

from bench.doctor import machine, probes, versions
from bench.doctor.report import Finding, show
from bench.errors import cli


def main() -> int:
    argparse.ArgumentParser(prog="python -m bench.doctor", description=__doc__.split("\n")[0]).parse_args()
    pins, found = versions.read_pins(), versions.installed()
    environment = versions.check(found, pins)
    show("Versions", environment)
    if any(finding.mark == "fail" for finding in environment):
        stack = [Finding("info", "lookup, gloo", "not tried: mend the versions first")]
    else:
        stack = probes.check()
    show("Stack", stack)
    limits = machine.check(found, versions.REQUIREMENTS.parent)
    show("Machine", limits)
    failures = [finding for finding in [*environment, *stack, *limits] if finding.mark == "fail"]
    print("\n" + (f"{len(failures)} to mend:" if failures else "The suite runs here."))
    for failure in failures:
        print(f"  {failure.name}: {failure.text}")
    return 1 if failures else 0


if __name__ == "__main__":
    cli(main)
