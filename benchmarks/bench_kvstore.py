"""Rounds of a parameter server (push N bytes, update, pull N bytes) beside what they are made of, in the same run.

One worker, over TCP and shared memory: against raw transfers between two processes, one `add_` and one memcpy, in time
and in processor time (`raw` is that of both processes; a copy here is torch's, a round uses the C library's). Two
workers with SGD-momentum on one and two servers in shared memory: against gloo's all-reduce of as many bytes.
"""

from __future__ import annotations

import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from pairs import finish, machine, verdict

from shoal.kvstore.client import Client
from shoal.kvstore.layout import Layout, Terms
from shoal.kvstore.updater import describe
from shoal.launch.handshake import SECRET_FILE

REPEATS = 7
SIZES = {4.7: 20, 44.7: 4, 102.0: 2}
"""MB -> rounds timed together."""
PAIR_MB = 102.0
PAIR_ROUNDS = 3


class Servers:
    """`shoal server` in processes of their own."""

    def __init__(self, folder: Path, workers: int, servers: int) -> None:
        env = {**os.environ, SECRET_FILE: str(folder / "secret")}
        command = [sys.executable, "-m", "shoal", "server", "--listen", "127.0.0.1:0", "-n", str(workers)]
        self.processes = [
            subprocess.Popen(
                [*command, "--rank", str(rank), "-s", str(servers), "--threads", "1"],
                env=env,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(servers)
        ]
        self.addresses = [process.stdout.readline().split()[-1] for process in self.processes]  # type: ignore[union-attr]

    def cpu_s(self) -> float:
        return sum(_cpu_s(process.pid) for process in self.processes)

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def make_client(addresses: list[str], rank: int, ranks: int, size: int, momentum: float, shared: bool, secret: bytes):
    """A client with a table of `size` numbers, and the flat tensor to pull into."""
    tensors = [torch.zeros(size)]
    described = describe(torch.optim.SGD(tensors, lr=1e-4, momentum=momentum, fused=True), tensors)
    client, flat = Client(addresses, rank, ranks, secret, shared_memory=shared), torch.zeros(size)
    client.init(flat, Layout.of([("a", tensors[0])]), described, Terms())
    client.gradient.fill_(1e-3)
    return client, flat


def timed(work: Callable[[], object], times: int) -> float:
    """Seconds each."""
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


class Raw:
    """A process that takes N bytes and answers one: what a transfer costs at least."""

    def __init__(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        code = (
            "import socket, sys\n"
            "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
            "held = memoryview(bytearray(1 << 27))\n"
            "while size := int.from_bytes(s.recv(8, socket.MSG_WAITALL), 'little'):\n"
            "    s.recv_into(held[:size], flags=socket.MSG_WAITALL) == size or sys.exit(1)\n"
            "    s.sendall(b'.')\n"
        )
        self._process = subprocess.Popen([sys.executable, "-c", code, str(listening.getsockname()[1])])
        self._socket = listening.accept()[0]

    def cpu_s(self) -> float:
        return _cpu_s(self._process.pid)

    def one_way(self, data: memoryview) -> None:
        self._socket.sendall(len(data).to_bytes(8, "little"))
        self._socket.sendall(data)
        self._socket.recv(1)

    def close(self) -> None:
        self._socket.sendall(bytes(8))
        self._process.wait()


def alone(folder: Path, secret: bytes) -> None:
    """One worker, one server."""
    raw = Raw()
    for mb, times in SIZES.items():
        size = int(mb * 1e6 / 4)
        a, b = torch.ones(size), torch.ones(size)
        data = memoryview(a.numpy()).cast("B")  # type: ignore[arg-type]
        with Servers(folder, 1, 1) as tcp, Servers(folder, 1, 1) as memory:
            rounds = {}
            for name, servers in (("tcp", tcp), ("memory", memory)):
                rounds[name] = Round(servers, size, name == "memory", secret)
            figures: dict[str, list[float]] = {name: [] for name in ("raw", "copy", "add", "tcp", "memory")}
            floors: dict[str, list[float]] = {"tcp": [], "memory": []}
            cpu = dict.fromkeys(figures, 0.0)

            def measured(name: str, work: Callable[[], object], other: Callable[[], float]) -> None:
                before = other() + time.process_time()
                figures[name].append(timed(work, times))  # noqa: B023  (called in this turn of the loop only)
                cpu[name] += other() + time.process_time() - before  # noqa: B023

            for _ in range(REPEATS):
                measured("raw", partial(raw.one_way, data), raw.cpu_s)
                measured("copy", partial(b.copy_, a), float)
                measured("add", partial(b.add_, a, alpha=1e-3), float)
                once, copy, add = (figures[name][-1] for name in ("raw", "copy", "add"))
                floors["tcp"].append(2 * once + add + copy)
                floors["memory"].append(copy + add)
                for name, servers in (("tcp", tcp), ("memory", memory)):
                    measured(name, rounds[name].turn, servers.cpu_s)
            for turning in rounds.values():
                turning.client.close()
        parts = ", ".join(f"{name} {1000 * statistics.median(figures[name]):.2f} ms" for name in ("raw", "copy", "add"))
        print(f"{mb} MB, n = {REPEATS} x {times}; floors: {parts}")
        moved_gb = REPEATS * times * 2 * size * 4 / 1e9
        floor_s = {"memory": cpu["copy"] + cpu["add"], "tcp": 2 * cpu["raw"] + cpu["copy"] + cpu["add"]}
        for name, most, most_cpu in (("tcp", 1.25, 0.60), ("memory", 1.5, 0.20)):
            ratios = sorted(a / b for a, b in zip(figures[name], floors[name], strict=True))
            ratio = statistics.median(ratios)
            per_gb, least = cpu[name] / moved_gb, floor_s[name] / moved_gb
            print(
                f"  {name}: round {1000 * statistics.median(figures[name]):.2f} ms, of the floor {ratio:.2f} "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f}), processor {per_gb:.3f} s per GB (the floor {least:.3f})"
            )
            verdict(f"{name} round at {mb} MB, of the floor", ratio, f"<= {most}", ratio <= most)
            verdict(f"{name} processor s per GB at {mb} MB", per_gb, f"<= {most_cpu}", per_gb <= most_cpu)
    raw.close()


class Round:
    """push, commit, pull."""

    def __init__(self, servers: Servers, size: int, shared: bool, secret: bytes) -> None:
        self.client, self.flat = make_client(servers.addresses, 0, 1, size, 0.0, shared, secret)
        self.step = 0
        self.turn()

    def turn(self) -> None:
        self.client.push(0, self.client.gradient)
        assert self.client.commit(self.step, lr=1e-4).applied
        self.client.pull(self.flat)
        self.step += 1


def worker(rank: int, rendezvous: str, addresses: list[list[str]], secret: bytes) -> None:
    """One of two: rounds on each set of servers in turn, and all-reduces between them. Rank 0 prints seconds each."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"tcp://{rendezvous}", rank=rank, world_size=2)
    size = int(PAIR_MB * 1e6 / 4)
    clients = [make_client(servers, rank, 2, size, 0.9, True, secret) for servers in addresses]
    held = torch.ones(size)
    turns: list[Callable[[int], object]] = [lambda step: dist.all_reduce(held)]
    for client, flat in clients:
        turns.append(partial(_turn, client, flat))
    step = 0
    for repeat in range(REPEATS + 1):
        spent = []
        for number, turn in enumerate(turns):
            dist.barrier()
            began = time.perf_counter()
            for more in range(PAIR_ROUNDS):
                turn(step + more)
                if number == 0:
                    held.fill_(1.0)
            spent.append((time.perf_counter() - began) / PAIR_ROUNDS)
        step += PAIR_ROUNDS
        if rank == 0 and repeat:
            print(*spent, flush=True)
    for client, _ in clients:
        client.close()


def _turn(client: Client, flat: torch.Tensor, step: int) -> None:
    client.push(0, client.gradient)
    assert client.commit(step, lr=1e-4).applied
    client.pull(flat)


def pair(folder: Path, secret: bytes) -> None:
    """Two workers in processes of their own."""
    with Servers(folder, 2, 1) as one, Servers(folder, 2, 2) as two:
        with socket.create_server(("127.0.0.1", 0)) as free:
            rendezvous = f"127.0.0.1:{free.getsockname()[1]}"
        command = [sys.executable, __file__, "worker", rendezvous, ",".join(one.addresses), ",".join(two.addresses)]
        env = {**os.environ, SECRET_FILE: str(folder / "secret")}
        workers = [
            subprocess.Popen([*command, str(rank)], env=env, stdout=subprocess.PIPE, text=True) for rank in range(2)
        ]
        outputs: list[str] = ["", ""]

        def read(rank: int) -> None:
            outputs[rank] = workers[rank].communicate()[0]

        threads = [threading.Thread(target=read, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = [[float(figure) for figure in line.split()] for line in outputs[0].splitlines()]
    gloo = statistics.median(row[0] for row in rows)
    print(f"W=2, {PAIR_MB} MB, SGD with momentum, shared memory, n = {len(rows)} x {PAIR_ROUNDS}: gloo {gloo:.3f} s")
    for servers in (1, 2):
        spent = sorted(row[servers] for row in rows)
        ratio = statistics.median(row[0] / row[servers] for row in rows)
        median = statistics.median(spent)
        print(
            f"  S={servers}: round {median:.3f} s ({spent[0]:.3f} to {spent[-1]:.3f}), {ratio:.2f} x gloo's throughput"
        )
        verdict(f"median round, W=2 S={servers}, s", median, "<= 0.15", median <= 0.15)
        verdict(f"throughput of gloo's, W=2 S={servers}", ratio, ">= 1", ratio >= 1)


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        from shoal.launch.handshake import read_secret

        rendezvous, one, two, rank = sys.argv[2:]
        worker(int(rank), rendezvous, [one.split(","), two.split(",")], read_secret())
        return
    torch.set_num_threads(1)
    print(machine())
    secret = secrets.token_hex(32).encode()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        descriptor = os.open(folder / "secret", os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, secret)
        os.close(descriptor)
        only = sys.argv[1:]
        if not only or "alone" in only:
            alone(folder, secret)
        if not only or "pair" in only:
            pair(folder, secret)
    finish()


if __name__ == "__main__":
    main()
