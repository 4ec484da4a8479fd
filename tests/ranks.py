"""Runs a test's function on several ranks: gloo processes that start once, at the first call, and serve all later ones.

The workers are forked from a server that has TorchRec imported, so that eight of them start in about a second.
"""

import atexit
import faulthandler
import gc
import multiprocessing
import os
import pickle
import re
import signal
import tempfile
import threading
import time
import traceback
from datetime import timedelta
from multiprocessing import connection, forkserver
from pathlib import Path
from unittest import mock

MOST = 8
GRACE_S = 2.0  # for the stacks of ranks that are stuck, which they write when the time is over
_OURS = re.compile(rf"^.*{re.escape(__file__)}.* in _work$", re.MULTILINE)  # what is below it is the same in all ranks
FOREVER = timedelta(days=1)  # on_ranks keeps the time: a collective that gives up first would hide where the others are


def on_ranks(size: int, function, *args, timeout: float = 60) -> list:
    """The results of function(rank, *args) on `size` ranks (at most 8), by rank.

    The default process group (gloo) holds these ranks; torchrun's variables are set for one host. `function` is a
    module-level function of a test module; it, args and results are pickled. Workers live on from call to call: seeds,
    and whatever else is global but the environment and the process groups, are the caller's matter.

    The first rank to raise ends the call: its exception is raised here, with the rank and its traceback as a note.
    TimeoutError: some rank did not return within `timeout` seconds; the note shows where it was. RuntimeError: a rank
    died. After any of these the next call gets new workers.
    """
    __tracebackhide__ = True  # pytest shows the test and the note
    global _pool
    if not 1 <= size <= MOST:
        raise ValueError(f"size is {size}, not 1 to {MOST}")
    call = pickle.dumps((function, args))
    _pool = _pool or _Pool()
    try:
        return _pool.run(size, call, timeout)
    except BaseException:  # also Ctrl-C: the ranks may wait for each other, and no other call can use them
        _stop()
        raise


def quick_start() -> multiprocessing.context.ForkServerContext:
    """Starts processes that have TorchRec imported already, and one thread each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torchrec", "hypothesis", "pytest"])
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):  # nor a second thread in the server, which forks
        forkserver.ensure_running()
    return context


class _Pool:
    def __init__(self):
        import torch.distributed as dist  # not before a test asks for ranks

        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.calls = 0
        context = quick_start()
        self.workers, self.pipes = [], []
        for _ in range(MOST):
            ours, theirs = context.Pipe()
            self.workers.append(context.Process(target=_work, args=(theirs, self.store.port), daemon=True))
            self.workers[-1].start()
            self.pipes.append(ours)
            theirs.close()

    def run(self, size: int, call: bytes, timeout: float) -> list:
        __tracebackhide__ = True
        self.calls += 1
        with tempfile.TemporaryDirectory(prefix="ranks-") as stacks:
            job = pickle.dumps((self.calls, size, timeout, stacks, call))
            for rank, pipe in enumerate(self.pipes[:size]):
                pipe.send_bytes(pickle.dumps(rank))
                pipe.send_bytes(job)
            results = self.results(size, timeout, Path(stacks))
        for pipe in self.pipes[:size]:
            pipe.send_bytes(b"all have returned")
        return [pickle.loads(results[rank]) for rank in range(size)]

    def results(self, size: int, timeout: float, stacks: Path) -> dict[int, bytes]:
        """The pickled result of each rank; raises what the first rank to fail raised."""
        __tracebackhide__ = True
        deadline = time.monotonic() + timeout
        results = {}
        while len(results) < size:
            waiting = {self.pipes[rank]: rank for rank in range(size) if rank not in results}
            ready = connection.wait(waiting, max(0.0, deadline + GRACE_S - time.monotonic()))
            if not ready:
                raise _late(size, timeout, sorted(waiting.values()), stacks)
            failed = []
            for pipe in ready:
                rank = waiting[pipe]
                try:
                    when, good, answer = pickle.loads(pipe.recv_bytes())
                except (EOFError, ConnectionError):  # the pipe closes with its process
                    self.workers[rank].join(GRACE_S)
                    when, good, answer = 0.0, False, (None, f"died, exit code {self.workers[rank].exitcode}")
                if good:
                    results[rank] = answer
                else:
                    failed.append((when, rank, *answer))
            if failed:
                _, rank, error, text = min(failed, key=lambda failure: failure[:2])
                raise _with_note(error, rank, size, text)
        return results

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.join()
            worker.close()
        for pipe in self.pipes:
            pipe.close()


def _late(size: int, timeout: float, ranks: list[int], stacks: Path) -> TimeoutError:
    error = TimeoutError(f"after {timeout:g} s rank {', '.join(map(str, ranks))} of {size} had not returned")
    for rank in ranks:
        text = (stacks / str(rank)).read_text() if (stacks / str(rank)).exists() else ""
        frames = text.rpartition("recent call first):\n")[2]  # the main thread comes last
        error.add_note(f"rank {rank} was in:\n{_OURS.split(frames)[0]}" if frames else f"rank {rank} does not answer")
    return error


def _with_note(pickled: bytes | None, rank: int, size: int, text: str) -> BaseException:
    """The rank's own exception where it can be pickled, for the test to expect; else a RuntimeError with its text."""
    error: BaseException = RuntimeError(f"rank {rank} of {size} {text.strip().splitlines()[-1]}")
    if pickled is not None:
        try:
            error = pickle.loads(pickled)
        except Exception:
            pass
    error.add_note(f"on rank {rank} of {size}: {text}")
    return error


_pool: _Pool | None = None


@atexit.register
def _stop() -> None:
    global _pool
    pool, _pool = _pool, None
    if pool is not None:
        pool.stop()


def _work(pipe: connection.Connection, port: int) -> None:
    """A worker: serves calls until the tests end."""
    import torch.distributed as dist

    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests end it
    gc.freeze()  # what was imported stays: collecting after a call is quick
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    while True:
        try:
            rank = pickle.loads(pipe.recv_bytes())
            number, size, timeout, stacks, call = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        environment = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
        with (
            open(os.path.join(stacks, str(rank)), "w") as stack,
            mock.patch.dict(os.environ, {name: str(value) for name, value in environment.items()}),
        ):
            faulthandler.dump_traceback_later(timeout, file=stack)
            try:
                dist.init_process_group(
                    "gloo", store=dist.PrefixStore(str(number), store), rank=rank, world_size=size, timeout=FOREVER
                )
                function, args = pickle.loads(call)
                answer = (True, pickle.dumps(function(rank, *args)))
            except BaseException as error:  # pytest.fail and sys.exit are no Exception
                answer = (False, (_pickled(error), traceback.format_exc()))
            finally:
                faulthandler.cancel_dump_traceback_later()
        pipe.send_bytes(pickle.dumps((time.monotonic(), *answer)))
        del answer
        pipe.recv_bytes()  # nobody waits in a collective any more
        _forget_groups()


def _pickled(error: BaseException) -> bytes | None:
    try:
        return pickle.dumps(error)
    except Exception:
        return None


def _forget_groups() -> None:
    import torch.distributed as dist
    from torchrec.distributed import collective_utils, comm

    dist.destroy_process_group()
    # TorchRec keeps the groups it made for a host and across hosts, and would use them, destroyed, in the next call;
    # and a process's first DistributedModelParallel talks to the others', which are its first in the next call or not
    for name in ("_INTRA_PG", "_CROSS_PG", "_INTRA_PG_2D", "_CROSS_PG_2D", "_NODE_GROUP_SIZE_2D"):
        setattr(comm, name, None)
    collective_utils._INITIALIZED = False
    gc.collect()


def _end_with_the_tests() -> None:
    connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)
