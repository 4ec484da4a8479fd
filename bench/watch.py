"""Ends every rank of a job when one fails, whether or not anything else watches over them.

Rank 0 has a judge, a thread to which a thread of every rank keeps a connection. It finds a rank that

- raises: the rank says so. The judge waits a moment for others who raise the same, then tells all;
- is killed: the connection closes with the process;
- is stopped, or lost with its machine: no sign of life for half of timeout_s. The ranks on its machine kill it;
- hangs (an endless loop): the others give up their exchange after timeout_s and say so, and it has not.

The judge gives signs of life too: rank 0 is found by the others. A call that holds the interpreter for half of
timeout_s counts as a stop, for no other thread runs meanwhile.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NoReturn

import psutil
import torch.distributed as dist

from bench.errors import UserError, sentence
from bench.judge import LINGER_S, Judge, died, read, signs, silent

CAUSE_S = 0.3  # the rank that fails ends this much before the others: torchrun then calls it the root cause
TERMINATED_S = 0.2  # rank 0 may be only the first to get a signal that goes to all: no word then


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
        self.sign_s, self.silent = signs(timeout_s)
        self.judge = None
        if rank == 0:
            self.judge = Judge(os.environ["MASTER_ADDR"], size, timeout_s)
            store.set("judge", json.dumps(self.judge.address))
            self.judge.start()
        try:
            host, port, token = json.loads(store.get("judge"))
            sock = socket.create_connection((host, port), timeout=timeout_s)
            sock.sendall(token.encode())
            sock.settimeout(None)
            self.pipe = Connection(sock.detach())
            self._say("here", rank=rank, process=_this_process())
            word = read(self.pipe) if self.pipe.poll(timeout_s + LINGER_S) else {"text": "rank 0 does not answer"}
        except (dist.DistError, OSError, EOFError) as error:
            raise UserError(f"rank {rank} of {size} lost rank 0 before all had come: see what rank 0 wrote") from error
        if "processes" not in word:
            self.pipe.close()
            if self.judge:  # which ends with this process: the others are to hear it first
                self.judge.join(LINGER_S)
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
                    word = read(self.pipe)
                    if word["say"] == "through":
                        self.through.set()
                    elif word["say"] == "end":
                        self._say("heard")
                        self._end(word)
                if time.monotonic() >= due:
                    due, missed = time.monotonic() + self.sign_s, missed + 1
                    self._say("alive")
                    if missed > self.silent:
                        self._end(silent(0, self.size, missed * self.sign_s))
        except (EOFError, OSError):
            time.sleep(TERMINATED_S)
            self._end(died(0, self.size))
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


def _is_exchange(error: BaseException) -> bool:
    """Whether a collective failed, and not the rank itself: another rank is the cause."""
    return isinstance(error, RuntimeError) and (
        isinstance(error, dist.DistError) or "gloo" in str(error) or "NCCL" in str(error)
    )


def _this_process() -> dict:
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": psutil.Process().create_time()}


def _kill(process: dict) -> None:
    """Kills a process of this machine that cannot end itself."""
    with suppress(psutil.Error):
        there = psutil.Process(process["pid"])
        if process["host"] == socket.gethostname() and abs(there.create_time() - process["since"]) < 2:
            there.kill()
