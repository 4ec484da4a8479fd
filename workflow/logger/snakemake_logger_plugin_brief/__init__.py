"""What a person sees of a long workflow: one line a finished step, with the time left; a failure names its log.

`PYTHONPATH=workflow/logger snakemake --logger brief` (the Makefile says so) shows this in place of Snakemake's own
output, which still goes to .snakemake/log/ in full.
"""

import logging
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

TARGETS = ("all", "figures", "total")  # rules that run nothing, and Snakemake's sum over rules
SAID = ("RuleException", "Exiting because a job", "WorkflowError:\nAt least one job")  # after our own FAILED line
SHOWN = ("Nothing to be done", "MissingInputException", "Missing input")  # of Snakemake's own remarks


class LogHandler(LogHandlerBase):
    def __post_init__(self) -> None:
        self.jobs: dict[int, dict] = {}  # job id -> rule, label, start
        self.left: Counter[str] = Counter()  # rule -> jobs not yet done
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)  # rule -> seconds of finished jobs
        self.total = 0  # without the targets, which run nothing
        self.running = 0

    writes_to_stream = True  # takes the place of Snakemake's own output
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._emit(record)
        except Exception:  # a remark that cannot be printed must not stop a workflow
            self.handleError(record)

    def _emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if event == LogEvent.RUN_INFO:
            self.left = Counter({rule: count for rule, count in record.stats.items() if rule not in TARGETS})
            self.total = self.left.total()
            steps = ", ".join(f"{count} {rule}" for rule, count in self.left.items())
            self._say(f"{'would run' if self.common_settings.dryrun else 'to do'}: {steps or 'nothing'}")
        elif event == LogEvent.JOB_INFO:
            names = dict.fromkeys([record.rule_name, *(Path(log).stem for log in record.log or [])])  # logs: as the run
            self.jobs[record.jobid] = {"rule": record.rule_name, "label": " ".join(names), "start": time.monotonic()}
            self.running += 1
        elif event == LogEvent.JOB_FINISHED:
            self._finished(record.job_id)
        elif event == LogEvent.JOB_ERROR:
            self._failed(record.jobid, list(record.log or []))
        elif event == LogEvent.ERROR or record.levelno >= logging.ERROR:
            if not record.getMessage().startswith(SAID):
                self._say(record.getMessage())
        elif event is None and record.getMessage().startswith(SHOWN):
            self._say(record.getMessage())

    def _finished(self, jobid: int) -> None:
        job = self.jobs.pop(jobid)
        self.running -= 1
        if job["rule"] in TARGETS:
            return
        self.left[job["rule"]] -= 1
        seconds = time.monotonic() - job["start"]
        self.seconds[job["rule"]].append(seconds)
        done = self.total - self.left.total()
        self._say(f"[{done}/{self.total}] {job['label']}: {_duration(seconds)}{self._time_left()}")

    def _time_left(self) -> str:
        """Mean seconds of each rule's finished jobs times its jobs left, shared by the jobs that run at once."""
        work = sum(count * sum(s) / len(s) for rule, count in self.left.items() if count and (s := self.seconds[rule]))
        lanes = self.running + 1  # the job that just ended makes room for another
        return f", about {_duration(work / lanes)} left" if work >= 1 else ""

    def _failed(self, jobid: int, logs: list[str]) -> None:
        job = self.jobs.pop(jobid, {"label": "a step"})
        self.running = max(0, self.running - 1)
        log = Path(logs[0]) if logs else None
        lines = log.read_text(errors="replace").strip().splitlines() if log and log.is_file() else []
        reason = f": {lines[-1].split(chr(13))[-1].strip()[:300]}" if lines else ""
        self._say(f"FAILED {job['label']}{reason}\n       read {log or '.snakemake/log/'}")

    @staticmethod
    def _say(line: str) -> None:
        sys.stderr.write(f"{line}\n")  # one write: the workflow's own lines come from another thread


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
