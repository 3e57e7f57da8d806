"""Links of hosts of our own, and trainings over them: what a forecast says is compared with what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cluster import Hosts

SIZES = (1 << 16, 1 << 21)
_TALK = """
import socket, sys, threading, time
size, port, there = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if there == "-":
    wire = socket.create_server(("", port)).accept()[0]
else:
    for attempt in range(200):
        try:
            wire = socket.create_connection((there, port)); break
        except OSError:
            time.sleep(0.02)
wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
held, data = memoryview(bytearray(size)), bytes(size)
def take(count):
    got = 0
    while got < count:
        got += wire.recv_into(held[got:count])
def both(count):
    sending = threading.Thread(target=wire.sendall, args=(data[:count],))
    sending.start(); take(count); sending.join()
took = {}
for count in (1, size):
    times = []
    for turn in range(8):
        began = time.perf_counter()
        if there == "-":
            take(1); wire.sendall(b"x")
        else:
            wire.sendall(b"x"); take(1)
        if count > 1:  # both are here: bytes that had come before would seem to take no time
            began = time.perf_counter()
            both(count)
        times.append(time.perf_counter() - began)
        time.sleep(0.03)
    took[count] = min(times)
print(took[1] / 2, took[size])
"""
"""Two ends that send each other so many bytes at the same time; prints one way's seconds, and those of the bytes, each
the least of several: a busy machine only ever makes a link seem slower."""


@dataclass(frozen=True)
class Link:
    byte_s: float
    latency_s: float


def probe_link(hosts: Hosts, port: int = 9100) -> Link:
    """What passes between the first two hosts now, both ways at once."""
    first, second = hosts.names[:2]
    took = []
    for number, size in enumerate(SIZES):
        words = [sys.executable, "-S", "-c", _TALK, str(size), str(port + number)]
        other = subprocess.Popen(hosts.argv(first, [*words, "-"]), stdout=subprocess.DEVNULL)
        try:
            said = hosts.exec(second, [*words, hosts.address(first)]).stdout.split()
        finally:
            other.wait(20)
        took.append([float(word) for word in said])
    (latency, small), (_, large) = took
    return Link((large - small) / (SIZES[1] - SIZES[0]), latency)


def trained(hosts: Hosts, folder: Path, words: list[str], steps: int, warm: int) -> float:
    """images/s of `shoal train WORDS` over the first two hosts, after its first `warm` of so many steps."""
    over = ["-n", "2", "-H", ",".join(hosts.names[:2]), "--ssh-config", str(hosts.ssh_config), "--run", str(folder)]
    rest = [f"length={steps}st", f"eval_every={steps}st", f"save_every={steps}st", f"log_every={warm}st"]
    argv = hosts.on_head([sys.executable, "-m", "shoal", "train", *words, *rest, *over])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-2000:]
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    told = [(event["images"], event["trained_s"]) for event in events if event["event"] == "train"]
    (images, began), (last, ended) = told[0], told[-1]
    return (last - images) / (ended - began)
