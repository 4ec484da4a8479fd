"""Ends every rank of a job when one fails, whether or not anything else watches over them.

Rank 0 has a judge, a thread to which a thread of every rank keeps a connection. It finds a rank that

- raises: the rank says so. The judge waits a moment for others who raise the same, then tells all;
- is killed: the connection closes with the process;
- is stopped, or lost with its machine: no sign of life for half of timeout_s. The ranks on its machine kill it;
- hangs (an endless loop): the others give up their exchange after timeout_s and say so, and it has not.

The judge gives signs of life too: rank 0 is found by the others. A call that holds the interpreter for half of
timeout_s counts as a stop, for no other thread runs meanwhile.
"""

import ipaddress
import json
import math
import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import NoReturn

import psutil
import torch.distributed as dist

from bench.errors import UserError, sentence

WORDS = ("failed", "broken", "done")  # what a rank reports: it raised, its exchange failed, its work is done
SETTLE_S = 2.0  # from the first report to the end: others may raise the same, or turn out to be the cause
LINGER_S = 5.0  # until all have heard the end
CAUSE_S = 0.3  # the rank that fails ends this much before the others: torchrun then calls it the root cause
TERMINATED_S = 0.2  # rank 0 may be only the first to get a signal that goes to all: no word then
MOST_BYTES = 1 << 20


class Watch:
    """One rank's thread: it hears from the judge how the job ends, and ends the process.

    Of the `size` ranks, none waits for another longer than timeout_s. They find each other through `store`.

    Raises:
        UserError: a rank did not come in time.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout_s: float):
        self.rank, self.size = rank, size
        self.error: BaseException | None = None
        self.through = threading.Event()
        self.sending = threading.Lock()
        self.sign_s, self.silent = _signs(timeout_s)
        self.judge = None
        if rank == 0:
            self.judge = _Judge(os.environ["MASTER_ADDR"], size, timeout_s)
            store.set("judge", json.dumps(self.judge.address))
            self.judge.start()
        try:
            host, port, token = json.loads(store.get("judge"))
            sock = socket.create_connection((host, port), timeout=timeout_s)
            sock.sendall(token.encode())
            sock.settimeout(None)
            self.pipe = Connection(sock.detach())
            self._say("here", rank=rank, process=_this_process())
            word = _read(self.pipe) if self.pipe.poll(timeout_s + LINGER_S) else {"text": "rank 0 does not answer"}
        except (dist.DistError, OSError, EOFError) as error:
            raise UserError(f"rank {rank} of {size} lost rank 0 before all had come: see what rank 0 wrote") from error
        if "processes" not in word:
            raise UserError(word["text"])
        self.processes = word["processes"]
        self.thread = threading.Thread(target=self._listen, daemon=True, name="watch")
        self.thread.start()

    def meet(self) -> None:
        """Returns when every rank has called it."""
        self._say("done")
        self.through.wait()

    def close(self) -> None:
        """After meet(), when nothing is left to do with the other ranks; rank 0 leaves last."""
        self.thread.join()
        self.pipe.close()
        if self.judge:
            self.judge.join()

    def fail(self, error: BaseException) -> NoReturn:
        """Ends the process, and the job, with what the main thread raised."""
        with suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.error = error
        text = sentence(error)
        if isinstance(error, KeyboardInterrupt | BrokenPipeError):
            code = 130 if isinstance(error, KeyboardInterrupt) else 1
            self._say("failed", line="interrupted" if code == 130 else "", code=code, quiet=True)
        elif isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else 1
            self._say("failed", line=f"exit code {code}" if code is error.code else str(error.code), code=code)
        elif text is not None:
            self._say("failed", line=text, code=2)
        else:
            lines = str(error).strip().splitlines() or [""]
            line = f"{type(error).__name__}: {lines[0][:1000]}"
            if _is_exchange(error):
                gave_up = "timed out" in line.lower() or "timeout" in line.lower()
                self._say("broken", line=line, code=1, gave_up=gave_up)
            else:
                self._say("failed", line=line, code=1)
        self.thread.join()
        raise error

    def _say(self, word: str, **more) -> None:
        with self.sending, suppress(OSError):  # whether the judge is gone, reading tells
            self.pipe.send_bytes(json.dumps({"say": word, **more}).encode())

    def _listen(self) -> None:
        try:
            due, missed = time.monotonic() + self.sign_s, 0
            while not self.through.is_set():
                if self.pipe.poll(max(0.0, due - time.monotonic())):
                    missed = 0
                    word = _read(self.pipe)
                    if word["say"] == "through":
                        self.through.set()
                    elif word["say"] == "end":
                        self._say("heard")
                        self._end(word)
                if time.monotonic() >= due:
                    due, missed = time.monotonic() + self.sign_s, missed + 1
                    self._say("alive")
                    if missed > self.silent:
                        self._end(_silent(0, self.size, missed * self.sign_s))
        except (EOFError, OSError):
            time.sleep(TERMINATED_S)
            self._end(_died(0, self.size))
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _end(self, end: dict) -> NoReturn:
        """Says why, once, and leaves without waiting for the main thread, which may hang."""
        mine, same, late = (self.rank in end.get(who, []) for who in ("raised", "same", "late"))
        code = end["code"] if same or end.get("quiet") else 1
        if "raised" in end and not mine:
            time.sleep(CAUSE_S)
        with suppress(Exception):
            if mine and not (end.get("quiet") or sentence(self.error) or isinstance(self.error, SystemExit)):
                traceback.print_exception(self.error)
            if late:
                stack = traceback.format_stack(sys._current_frames()[threading.main_thread().ident])
                sys.stderr.write(f"rank {self.rank} of {self.size} was in (most recent call last):\n{''.join(stack)}")
            if end.get("quiet"):
                if mine and end["text"]:
                    sys.stderr.write(f"{end['text']}\n")
            elif mine or not same:
                sys.stderr.write(f"error: {end['text']}\n")
            sys.stderr.flush()
            sys.stdout.flush()
        for rank in end.get("silent", []):
            _kill(self.processes[rank])
        if "raised" not in end and not late:
            time.sleep(CAUSE_S)
        if self.judge:
            self.judge.join(LINGER_S)
        os._exit(code)


class _Judge(threading.Thread):
    """Hears all ranks, also its own, and tells all how the job ends."""

    def __init__(self, master: str, size: int, timeout_s: float):
        super().__init__(daemon=True, name="judge")
        self.size, self.timeout_s = size, timeout_s
        self.sign_s, self.silent = _signs(timeout_s)
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
                    word = _read(pipe)
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
                word = _read(pipe)
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
            return _died(self.closed[0], self.size)
        silent = max(self.missed, key=self.missed.get)
        if self.missed[silent] > self.silent:
            return _silent(silent, self.size, self.missed[silent] * self.sign_s)
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


def _died(rank: int, size: int) -> dict:
    return _end(f"{_ranks([rank], size)} died without a word (killed, or out of memory?)")


def _silent(rank: int, size: int, seconds: float) -> dict:
    return _end(f"{_ranks([rank], size)} does not answer (last sign of life {seconds:.0f} s ago)", silent=[rank])


def _ranks(ranks: list[int], size: int) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} of {size}"


def _signs(timeout_s: float) -> tuple[float, int]:
    """Seconds between two signs of life, and how many in a row are missed by a process that has stopped."""
    sign_s = min(1.0, timeout_s / 20)
    return sign_s, math.ceil(timeout_s / 2 / sign_s)


def _read(pipe: Connection) -> dict:
    return json.loads(pipe.recv_bytes(MOST_BYTES))


def _is_exchange(error: BaseException) -> bool:
    """Whether a collective failed, and not the rank itself: another rank is the cause."""
    return isinstance(error, RuntimeError) and (
        isinstance(error, dist.DistError) or "gloo" in str(error) or "NCCL" in str(error)
    )


def _own_address(master: str) -> tuple[socket.AddressFamily, str]:
    """Where the ranks reach this machine: at MASTER_ADDR where that is here, else at the address that looks there."""
    family, kind, _, _, there = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as sock:
        sock.connect(there)
        here = sock.getsockname()[0]
    return family, master if here == there[0] or ipaddress.ip_address(here).is_loopback else here


def _this_process() -> dict:
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": psutil.Process().create_time()}


def _kill(process: dict) -> None:
    """Kills a process of this machine that cannot end itself."""
    with suppress(psutil.Error):
        there = psutil.Process(process["pid"])
        if process["host"] == socket.gethostname() and abs(there.create_time() - process["since"]) < 2:
            there.kill()
