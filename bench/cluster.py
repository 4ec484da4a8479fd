"""Run a command on the ranks of an emulated cluster: hosts with one shaped link each, all on this machine.

    python -m bench.cluster --hosts 4 --ranks-per-host 2 --link 200mbit -- python -m bench.collectives
    python -m bench.cluster --hosts 8 --ranks-per-host 2 --link link.json -- python -m bench.throughput

Each host is a Linux network namespace; its ranks talk to each other over its own loopback, unshaped, and to other hosts
over its one link, which carries RATE in each direction (bench.cluster_hosts builds it). The rate may be a file that
bench.calibrate wrote: at a shape with other ranks than there it is scaled to a rank's share of this machine's cores.
The command is started once a rank with torchrun's environment. When it has ended, the bytes that each link carried are
printed; the exit code is that of the first rank that failed.

Everything lives in namespaces of this run (processes, network, mounts), which the kernel removes with their last
process: a killed run leaves nothing, and two clusters at once do not meet. Needs root, or user namespaces, and the
programs unshare, setpriv (util-linux), ip and tc (iproute2).
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.arguments import whole
from bench.errors import UserError, cli
from bench.files import check_place
from bench.rank_environment import MEMORY

PROGRAMS = {"unshare": "util-linux", "setpriv": "util-linux", "ip": "iproute2", "tc": "iproute2"}  # of which package
DEVICE = "eth0"  # a host's link, inside its namespace
WANTED, GIVEN = Path("/run/link-rate-wanted"), Path("/run/link-rate-given")  # seen by the ranks of one cluster only
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"  # where ip and tc live, which a user's own path may lack
NAMESPACES = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
USER = ["--user", "--map-root-user"]  # in which one is root without being it
LOOPBACK = "loopback"
PROBE = (
    "mount -t tmpfs tmpfs /run && ip netns add one && ip link add left type veth peer name right netns one && "
    "tc qdisc add dev left root tbf rate 100mbit burst 256kb limit 8mb"
)


def bits_per_s(text: str) -> int:
    """A link's rate: 200mbit, 1.5gbit, 800kbit.

    Raises:
        ValueError: no such rate, or one of less than 1 kbit or more than 1000 gbit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", text.lower())
    rate = round(float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[match[2]]) if match else 0
    if not 1e3 <= rate <= 1e12:
        raise ValueError(f"{text} is no rate: write it as 200mbit or 1.5gbit")
    return rate


def read_rate(text: str, ranks: int) -> tuple[int | None, float]:
    """Bits a second of --link for so many ranks, and the dilation: their number / that at which the rate was found.

    None: a file of bench.calibrate that says that links cannot be emulated.

    Raises:
        ValueError: no rate, and no such file.
    """
    if not text.endswith(".json"):
        return bits_per_s(text), 1.0
    try:
        found = json.loads(Path(text).read_text())
        rate, dilation = found["bits_per_s"], ranks / found["topology"]["ranks"]
        return (None if rate is None else round(rate / dilation)), dilation
    except OSError as error:
        raise ValueError(f"{text} cannot be read ({error.strerror}): `python -m bench.calibrate` writes it") from None
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{text} is not what `python -m bench.calibrate` writes: run that again") from None


def entrance() -> list[str]:
    """The command that runs another one in new namespaces, as root there; dies with whoever started it.

    Raises:
        UserError: neither root nor user namespaces allow it here, or a program is missing.
    """
    missing = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if missing:
        packages = ", ".join(sorted({PROGRAMS[name] for name in missing}))
        raise UserError(f"{', '.join(missing)} not found: install {packages} (packages of Debian)")
    reason = ""
    for user in ([], USER) if os.geteuid() == 0 else (USER,):
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", *user, *NAMESPACES]
        done = subprocess.run(
            [*command, "sh", "-c", PROBE], capture_output=True, text=True, env=os.environ | {"PATH": PATH}
        )
        if done.returncode == 0:
            return command
        reason = reason or (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    raise UserError(f"no namespaces for emulated hosts here ({reason}): be root, or allow user namespaces")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Arguments of the command line (argv: None), or of a list."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s --hosts H --ranks-per-host L --link RATE [--or-loopback] [--json FILE] -- COMMAND ...",
    )
    parser.add_argument("--hosts", type=whole(1, 254), required=True, help="H")
    parser.add_argument("--ranks-per-host", type=whole(1, 64), required=True, help="L")
    parser.add_argument(
        "--link",
        required=True,
        metavar="RATE",
        help="of each host, each way: 200mbit, 1.5gbit, or bench.calibrate's file",
    )
    parser.add_argument(
        "--or-loopback",
        action="store_true",
        help="where hosts cannot be emulated, run over this machine's loopback, unshaped; records say so",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the links' counters")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    args = parser.parse_args(argv)
    args.command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not args.command:
        raise UserError("no command: write it behind -- (python -m bench.cluster ... -- python -m bench.exchange)")
    return args


def main() -> int:
    args = parse()
    try:
        rate, dilation = read_rate(args.link, args.hosts * args.ranks_per_host)
    except ValueError as error:
        raise UserError(f"--link {error}") from None
    check_place(args.json, "--json")
    inside = [sys.executable, "-m", "bench.cluster_hosts", str(args.hosts), str(args.ranks_per_host)]
    try:
        if rate is None:
            raise UserError(f"{args.link} says that links cannot be emulated here")
        command = [*entrance(), *inside, str(rate)]
    except UserError as error:
        if not args.or_loopback:
            raise UserError(f"{error}; or add --or-loopback to run without shaped links") from None
        print(f"{error}; going on over loopback, unshaped", file=sys.stderr)
        command = [*inside, LOOPBACK]
    root = str(Path(__file__).resolve().parent.parent)  # where `-m bench` is found, whatever folder this is called from
    env = {
        **MEMORY,
        **os.environ,
        "PATH": PATH,
        "EMULATED_DILATION": str(dilation),
        "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    counters = str(args.json.resolve()) if args.json else ""
    process = subprocess.Popen([*command, counters, *args.command], env=env)
    try:
        return process.wait()
    except KeyboardInterrupt:  # which the terminal sent to all of them
        process.wait()
        raise
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    cli(main)
