"""The judge: a thread of rank 0 that hears all ranks of a job and tells them how it ends (bench.watch says how).

Messages are JSON objects: "say" holds the word; an end also what to print, and who has which part in it.
"""

import ipaddress
import json
import math
import os
import secrets
import socket
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, wait

WORDS = ("failed", "broken", "done")  # what a rank reports: it raised, its exchange failed, its work is done
SETTLE_S = 2.0  # from the first report to the end: others may raise the same, or turn out to be the cause
LINGER_S = 5.0  # until all have heard the end
MOST_BYTES = 1 << 20


class Judge(threading.Thread):
    """Hears all ranks, also its own, and tells all how the job ends."""

    def __init__(self, master: str, size: int, timeout_s: float):
        super().__init__(daemon=True, name="judge")
        self.size, self.timeout_s = size, timeout_s
        self.sign_s, self.silent = signs(timeout_s)
        family, host = _own_address(master)
        self.server = socket.create_server(("", 0), family=family, backlog=size)
        self.token = secrets.token_hex()  # whoever has it has read the job's store
        self.address = (host, self.server.getsockname()[1], self.token)
        self.pipes: dict[Connection, int] = {}
        self.processes: dict[int, dict] = {}
        self.missed = dict.fromkeys(range(size), 0)  # signs of life in a row
        self.reports: dict[int, dict] = {}
        self.closed: list[int] = []

    def run(self) -> None:
        try:
            end = self._meet() or self._watch()
            self._tell(end)
            deadline = time.monotonic() + LINGER_S
            while self.pipes and time.monotonic() < deadline:  # one that has heard "through" closes
                self._hear(deadline, leave_at="heard")
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _meet(self) -> dict | None:
        """Greets every rank; the job's end where some do not come."""
        deadline = time.monotonic() + self.timeout_s
        with self.server:
            while len(self.processes) < self.size:
                self.server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    sock, _ = self.server.accept()
                except TimeoutError:
                    missing = [rank for rank in range(self.size) if rank not in self.processes]
                    return _end(f"{_ranks(missing, self.size)} did not come within {self.timeout_s:g} s")
                with suppress(OSError, EOFError):
                    sock.settimeout(1.0)
                    if not secrets.compare_digest(sock.recv(len(self.token)), self.token.encode()):
                        sock.close()  # somebody who looks for open ports
                        continue
                    sock.settimeout(None)
                    pipe = Connection(sock.detach())
                    word = read(pipe)
                    self.pipes[pipe] = word["rank"]
                    if word["rank"] in self.processes:
                        return _end(f"two processes say that they are rank {word['rank']} of {self.size}")
                    self.processes[word["rank"]] = word["process"]
        self._tell({"say": "welcome", "processes": [self.processes[rank] for rank in range(self.size)]})
        return None

    def _watch(self) -> dict:
        due = time.monotonic() + self.sign_s
        while True:
            self._hear(due)
            if time.monotonic() >= due:  # counted, not measured: a job that was stopped as a whole goes on
                due = time.monotonic() + self.sign_s
                self.missed = {rank: missed + 1 for rank, missed in self.missed.items()}
                self._tell({"say": "alive"})
            end = self._verdict()
            if end:
                return end

    def _hear(self, until: float, leave_at: str | None = None) -> None:
        for pipe in wait(list(self.pipes), max(0.0, until - time.monotonic())):
            rank = self.pipes[pipe]
            try:
                word = read(pipe)
            except (EOFError, OSError):
                word = None
                self.closed.append(rank)
            if word is None or word["say"] == leave_at:
                del self.pipes[pipe]
            elif word["say"] not in ("alive", "heard"):
                self.reports[rank] = {**word, "at": time.monotonic()}
            self.missed[rank] = 0

    def _tell(self, word: dict) -> None:
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send_bytes(json.dumps(word).encode())

    def _verdict(self) -> dict | None:
        """How the job ends, where that is clear."""
        now = time.monotonic()
        said = {word: [rank for rank, report in self.reports.items() if report["say"] == word] for word in WORDS}
        if said["failed"]:
            first = min(said["failed"], key=lambda rank: self.reports[rank]["at"])
            if len(said["failed"]) == self.size or self.closed or now - self.reports[first]["at"] > SETTLE_S:
                return self._raised(first, said["failed"])
            return None
        if self.closed:
            return died(self.closed[0], self.size)
        rank = max(self.missed, key=self.missed.get)
        if self.missed[rank] > self.silent:
            return silent(rank, self.size, self.missed[rank] * self.sign_s)
        if len(said["done"]) == self.size:
            return {"say": "through"}
        return self._hanging(now, said["broken"], said["done"])

    def _raised(self, first: int, failed: list[int]) -> dict:
        report = self.reports[first]
        same = [rank for rank in sorted(failed) if self.reports[rank]["line"] == report["line"]]
        alone = report.get("quiet") or len(same) == self.size
        text = report["line"] if alone else f"{_ranks(same[:1], self.size)}: {report['line']}"
        return _end(text, raised=same[:1], same=same, code=report["code"], quiet=report.get("quiet", False))

    def _hanging(self, now: float, broken: list[int], done: list[int]) -> dict | None:
        """Of ranks that have given up waiting: for whom they waited."""
        gave_up = {rank: self.reports[rank]["at"] for rank in broken if self.reports[rank]["gave_up"]}
        gave_up |= {rank: at for rank in done if (at := self.reports[rank]["at"] + self.timeout_s) < now}
        since = min([*gave_up.values(), *(self.reports[rank]["at"] for rank in broken)], default=now)
        if now - since < SETTLE_S:
            return None
        at_work = [rank for rank in range(self.size) if rank not in self.reports]
        if gave_up and at_work:
            if len(at_work) > 1 and now - since < self.timeout_s:
                return None  # some of them may be about to give up too
            return _end(f"{_ranks(at_work, self.size)} kept the others waiting for {self.timeout_s:g} s", late=at_work)
        if gave_up and done:
            return _end(f"{_ranks(done, self.size)} had finished while others waited {self.timeout_s:g} s for it")
        return self._raised(min(broken, key=lambda rank: self.reports[rank]["at"]), broken)


def _end(text: str, **more) -> dict:
    return {"say": "end", "text": text, **more}


def died(rank: int, size: int) -> dict:
    return _end(f"{_ranks([rank], size)} died without a word (killed, or out of memory?)")


def silent(rank: int, size: int, seconds: float) -> dict:
    return _end(f"{_ranks([rank], size)} does not answer (last sign of life {seconds:.0f} s ago)", silent=[rank])


def _ranks(ranks: list[int], size: int) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} of {size}"


def signs(timeout_s: float) -> tuple[float, int]:
    """Seconds between two signs of life, and how many in a row are missed by a process that has stopped."""
    sign_s = min(1.0, timeout_s / 20)
    return sign_s, math.ceil(timeout_s / 2 / sign_s)


def read(pipe: Connection) -> dict:
    return json.loads(pipe.recv_bytes(MOST_BYTES))


def _own_address(master: str) -> tuple[socket.AddressFamily, str]:
    """Where the ranks reach this machine: at MASTER_ADDR where that is here, else at the address that looks there."""
    family, kind, _, _, there = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as sock:
        sock.connect(there)
        here = sock.getsockname()[0]
    return family, master if here == there[0] or ipaddress.ip_address(here).is_loopback else here
