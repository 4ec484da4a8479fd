"""The hosts of an emulated cluster; bench.cluster runs this as root of new namespaces.

A switch (a bridge) joins the hosts. Each is a network namespace with ONE link for all its ranks, shaped by a token
bucket at both ends: with a link a rank, gloo's pairs would load the links unevenly. TCP is reno, whose losses at the
bucket are few. The ranks may change the rate (bench.link). Nothing is removed at the end: it all vanishes with its last
process.
"""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from bench.cluster import DEVICE, GIVEN, LOOPBACK, WANTED
from bench.cluster_ranks import address, start, wait
from bench.errors import UserError, cli
from bench.files import write_text

BUCKET = ["burst", "256kb", "limit", "8mb"]
TCP = {  # of every host
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv4.tcp_congestion_control": "reno",
    # Connections of one window each share a link evenly: with windows as large as they like, those that were first
    # crowd out the others, and the last of them then have the link for themselves.
    "net.ipv4.tcp_rmem": "4096 65536 65536",
    "net.ipv4.tcp_wmem": "4096 131072 131072",
}


def build(hosts: int, rate: int) -> None:
    """The switch and its hosts, host0 to host{hosts - 1}, with a link of `rate` bits a second each way.

    Raises:
        UserError: the kernel refuses; says which command.
    """
    _run("mount -t tmpfs tmpfs /run")
    names = "".join(f"{v6}{address(host)} host{host}\n" for host in range(hosts) for v6 in ("", "::ffff:"))
    Path("/run/hosts").write_text(f"127.0.0.1 localhost\n{names}")  # c10d asks for the name behind each address
    _run("mount --bind /run/hosts /etc/hosts")
    _run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1")
    _run("ip link add switch type bridge mcast_snooping 0")
    _run("ip link set switch up")
    for host in range(hosts):
        name, port = f"host{host}", f"port{host}"
        _run(f"ip netns add {name}")
        settings = " ".join(f"'{key}={value}'" for key, value in TCP.items())
        _run(f"ip netns exec {name} sysctl -qw {settings}")
        _run(f"ip link add {port} type veth peer name {DEVICE} netns {name}")
        _run(f"ip link set {port} master switch up")
        _run(f"ip -n {name} addr add {address(host)}/16 dev {DEVICE}")
        for device in ("lo", DEVICE):
            _run(f"ip -n {name} link set {device} up")
    shape("add", hosts, rate)


def shape(action: str, hosts: int, rate: int) -> None:
    """`add` or `change` the token buckets at both ends of every host's link."""
    for host in range(hosts):
        bucket = f"root tbf rate {rate}bit {' '.join(BUCKET)}"
        _run(f"tc -n host{host} qdisc {action} dev {DEVICE} {bucket}")
        _run(f"tc qdisc {action} dev port{host} {bucket}")


def obey(hosts: int) -> None:
    """Give the links the rate that a rank asked for with bench.link.set_rate, if one did."""
    if WANTED.exists():
        rate = WANTED.read_text()
        WANTED.unlink()
        shape("change", hosts, int(rate))
        GIVEN.write_text(rate)


def counters(hosts: int) -> list[dict[str, int]]:
    """Bytes that each host's link has sent and received, headers included."""
    found = []
    for host in range(hosts):
        (link,) = json.loads(_run(f"ip -n host{host} -s -j link show dev {DEVICE}"))
        found.append({"sent": link["stats64"]["tx"]["bytes"], "received": link["stats64"]["rx"]["bytes"]})
    return found


def _run(command: str) -> str:
    done = subprocess.run(shlex.split(command), capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"cannot emulate hosts: `{command}` says {done.stderr.strip() or done.returncode}")
    return done.stdout


def _terminated(number: int, frame) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> int:
    hosts, ranks_per_host, link, file, *command = sys.argv[1:]
    hosts, ranks_per_host = int(hosts), int(ranks_per_host)
    rate = None if link == LOOPBACK else int(link)
    signal.signal(signal.SIGTERM, _terminated)
    if rate is not None:
        build(hosts, rate)
    processes = start(command, hosts, ranks_per_host, rate)
    try:
        code = wait(processes, lambda: None if rate is None else obey(hosts))
    finally:
        for process in processes:
            process.kill()
    if rate is None:
        return code
    links = counters(hosts)
    for host, link in enumerate(links):
        print(f"host {host}: sent {link['sent']:,} bytes, received {link['received']:,} bytes", file=sys.stderr)
    if file:
        shape = {"hosts": hosts, "ranks_per_host": ranks_per_host, "bits_per_s": rate}
        write_text(Path(file), json.dumps(shape | {"links": links}, indent=1) + "\n")
    return code


if __name__ == "__main__":
    cli(main)
