"""The ranks of an emulated cluster: started, each in its host's namespace, and waited for.

`python -m MODULE` loads MODULE once, and its ranks are forks that have it: loading torch and torchrec takes seconds of
a core for each of 16 ranks that share two. Any other command is executed by each rank.
"""

import ctypes
import importlib
import multiprocessing
import os
import runpy
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkProcess

from bench.cluster import DEVICE
from bench.errors import UserError
from bench.rank_environment import threads

PORT = 29500
GRACE_S = 5.0  # for the other ranks to end by themselves and say why, once one has failed


def address(host: int) -> str:
    """Of the host's link."""
    return f"10.77.0.{host + 1}"


def start(command: list[str], hosts: int, ranks_per_host: int, rate: int | None) -> list[ForkProcess]:
    """The command on every rank; rate None: on this machine's own loopback."""
    size = hosts * ranks_per_host
    os.environ.update(threads(size), WORLD_SIZE=str(size))  # Snakemake sets those of the whole job
    if rate is None:
        local = {"LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        os.environ.update(local, GLOO_SOCKET_IFNAME="lo")
    else:
        local = {"LOCAL_WORLD_SIZE": str(ranks_per_host), "MASTER_ADDR": address(0), "MASTER_PORT": str(PORT)}
        os.environ.update(local, GLOO_SOCKET_IFNAME=DEVICE, EMULATED_LINK=str(rate))
    module = _module(command)
    if module:
        try:
            importlib.import_module(module)  # after the threads are set: libraries read them as they load
        except ModuleNotFoundError as error:
            raise UserError(f"python -m {module}: {error}") from None
    processes = []
    for rank in range(size):
        host, local_rank = divmod(rank, ranks_per_host)
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank if rate is None else local_rank)}
        namespace = None if rate is None else f"/run/netns/host{host}"
        process = multiprocessing.get_context("fork").Process(target=_be, args=(own, namespace, command, module))
        process.start()
        processes.append(process)
    return processes


def wait(processes: list[ForkProcess], meanwhile: Callable[[], None]) -> int:
    """Until all have ended; the exit code of the first that failed, 0 where none did. One failure ends them all."""
    code, deadline = 0, None
    while (running := [process for process in processes if process.exitcode is None]) or code == 0:
        failed = [process.exitcode for process in processes if process.exitcode]
        if failed and not code:
            code, deadline = failed[0], time.monotonic() + GRACE_S
        if not running:
            break
        if deadline is not None and time.monotonic() > deadline:
            for process in running:
                process.kill()
        meanwhile()
        time.sleep(0.02)
    return code if code >= 0 else 128 - code


def _module(command: list[str]) -> str | None:
    """MODULE of a command `python -m MODULE ...` with this Python."""
    this = os.path.abspath(shutil.which(command[0]) or command[0]) == sys.executable
    return command[2] if this and len(command) > 2 and command[1] == "-m" else None


def _be(own: dict[str, str], namespace: str | None, command: list[str], module: str | None) -> None:
    """What a rank does, in its process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(own)
    if namespace is not None:
        _enter(namespace)
    if module is None:
        try:
            os.execvp(command[0], command)
        except OSError as error:
            sys.exit(f"error: {command[0]} cannot be run: {error.strerror}")
    sys.argv[1:] = command[3:]
    del sys.modules[module]  # it is loaded again, as __main__
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(namespace) as file:
        if libc.setns(file.fileno(), 0x40000000):  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), "cannot enter this host", namespace)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
