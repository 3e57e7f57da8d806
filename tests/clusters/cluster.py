"""Hosts on one machine: each with its own address, name, sshd, process numbers, /dev/shm and cable.

A host is a network, UTS, IPC, mount and PID namespace; the machine itself is the head (address .254 on their bridge).
Hosts see the head's files unless something else is mounted there. Several clusters can be up at once: each takes a free
number K, which names its devices (`shoalK…`) and its addresses (10.93.K.0/24). A keeper process takes everything down
when the test process goes away, whatever the cause.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from processes import lives

NEEDED = ("ip", "ssh", "ssh-keygen", "unshare", "nsenter", "mount")
NET = os.environ.get("SHOAL_TEST_NET", "10.93")
"""The first two numbers of all addresses."""
PREFIX = os.environ.get("SHOAL_TEST_PREFIX", "shoal")
SSHD = next((path for path in ("/usr/sbin/sshd", shutil.which("sshd") or "") if path and os.path.exists(path)), None)
UP_S = 20.0
SSHD_CONFIG = """\
Port 22
HostKey {folder}/hostkey
AuthorizedKeysFile {folder}/id.pub
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PidFile none
MaxStartups 200
MaxSessions 100
UseDNS no
"""
SSH_CONFIG = """\
Host *
  User root
  IdentityFile {folder}/id
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  LogLevel ERROR
"""


def why_not() -> str | None:
    """What is lacking for hosts of our own, or None."""
    if sys.platform != "linux":
        return "namespaces are Linux's"
    if os.geteuid() != 0:
        return "only root may make hosts in namespaces"
    missing = [name for name in NEEDED if shutil.which(name) is None] + ([] if SSHD else ["sshd"])
    if missing:
        return f"no {', '.join(missing)} here (Debian: apt-get install openssh-server openssh-client iproute2)"
    tried = subprocess.run(["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "true"])
    return None if tried.returncode == 0 else "this container may not make namespaces"


@dataclass(frozen=True)
class Hosts:
    """`names` are up. `host1` is reached by `ssh -F ssh_config host1`."""

    number: int
    folder: Path
    names: tuple[str, ...]

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def key(self) -> Path:
        return self.folder / "id"

    @property
    def address_of_head(self) -> str:
        return f"{NET}.{self.number}.254"

    def address(self, name: str) -> str:
        return f"{NET}.{self.number}.{self.names.index(name) + 1}"

    def ssh(self, name: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Runs a command on a host as people do."""
        return subprocess.run(
            ["ssh", "-F", str(self.ssh_config), name, shlex.join(argv)], capture_output=True, text=True, timeout=600
        )

    def argv(self, name: str, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` inside a host, without its network."""
        return ["nsenter", "-t", str(self._init(name)), "--net", "--uts", "--ipc", "--mount", "--pid", *argv]

    def exec(self, name: str, argv: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs `argv` inside a host, without its network."""
        return subprocess.run(self.argv(name, argv), check=check, capture_output=True, text=True, timeout=600)

    def on_head(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` on the head, in the same process, with the hosts' names in /etc/hosts and
        without a name server: an unknown name is refused at once."""
        binds = f"mount --bind {self.folder}/hosts /etc/hosts; mount --bind {self.folder}/nsswitch /etc/nsswitch.conf"
        return ["unshare", "--mount", "--uts", "sh", "-c", f'hostname head; {binds}; exec "$@"', "sh", *argv]

    def unplug(self, name: str) -> None:
        """Pulls the cable of a host: nothing passes, and nobody is told."""
        _ip("link", "set", self._cable(name), "nomaster")

    def plug(self, name: str) -> None:
        _ip("link", "set", self._cable(name), "master", _bridge(self.number))

    def throttle(self, name: str, rate: str | None, burst: str = "16k") -> None:
        """Limits what a host sends, as in `100mbit`; None: no more. A small bucket lets short messages feel it too; one
        that is emptied sooner than this machine's timers ring makes the link slower than its rate."""
        if rate is not None:
            words = ("replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", burst, "latency", "50ms")
        else:
            words = ("del", "dev", "eth0", "root")
        self.exec(name, ["tc", "qdisc", *words], check=rate is not None)
        # What is larger than the bucket tbf cuts into packets, which takes cores that a network card would leave alone.
        whole = int(burst.removesuffix("k")) * 1000 if rate is not None else 65536
        self.exec(name, ["ip", "link", "set", "dev", "eth0", "gso_max_size", str(min(whole, 65536))])

    def off(self, name: str) -> None:
        """Power off: everything on it dies at once."""
        if (init := self._init(name)) is not None:
            os.kill(init, signal.SIGKILL)
            self._pid_file(name).unlink(missing_ok=True)
            while lives(init):
                time.sleep(0.002)

    def on(self, name: str) -> None:
        _power_on(self.number, self.folder, name)
        self._wait_for_sshd(name)

    def is_on(self, name: str) -> bool:
        return self._init(name) is not None

    def pids(self, name: str) -> list[int]:
        """Processes of a host, as the head numbers them, sshd and init included; the dead that wait to be reaped do
        not count."""
        return [pid for pid in _in_network(_netns(self.number, name)) if lives(pid)]

    def survivors(self, job: str) -> list[int]:
        """Processes with the tag of `job` on the head and on all hosts."""
        tag = f"SHOAL_JOB={job}".encode()
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    environment = Path("/proc", entry, "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if tag in environment and lives(int(entry)):
                    found.append(int(entry))
        return found

    def mend(self) -> None:
        """As it was at the start: all cables in, all hosts on."""
        for name in self.names:
            self.plug(name)
            if not self.is_on(name):
                self.on(name)

    def _init(self, name: str) -> int | None:
        """Process 1 of a host, while it lives."""
        try:
            pid = int(self._pid_file(name).read_text())
        except FileNotFoundError:
            return None
        return pid if pid in self.pids(name) else None

    def _pid_file(self, name: str) -> Path:
        return self.folder / f"{name}.pid"

    def _cable(self, name: str) -> str:
        return f"{_devices(self.number)}v{self.names.index(name) + 1}"

    def _wait_for_sshd(self, name: str) -> None:
        limit = time.monotonic() + UP_S
        while True:
            try:
                with socket.create_connection((self.address(name), 22), 1.0) as connection:
                    if connection.recv(4) == b"SSH-":
                        return
            except OSError:
                pass
            log = self.folder / f"{name}.log"
            assert time.monotonic() < limit, f"{name}: no sshd after {UP_S} s: {log.read_text()[-2000:]}"
            time.sleep(0.02)


@contextmanager
def cluster(count: int = 2) -> Iterator[Hosts]:
    """`count` hosts, gone at the end."""
    number = _take_number()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-hosts-"))
    names = tuple(f"host{index + 1}" for index in range(count))
    command = [sys.executable, os.path.abspath(__file__), str(number), str(folder)]
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        hosts = Hosts(number, folder, names)
        _write_files(hosts)
        for name in names:
            _lay_cable(hosts, name)
            _power_on(number, folder, name)
        for name in names:
            hosts._wait_for_sshd(name)
        yield hosts
    finally:
        keeper.communicate()  # closes its stdin, which is what it waits for


def down(number: int, folder: Path) -> None:
    """Removes cluster `number`, by what the kernel knows of it: also after a crash at any point of its life."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    spaces = [name for name in listed if name.startswith(f"{_devices(number)}-")]
    limit = time.monotonic() + UP_S
    while (left := [pid for name in spaces for pid in _in_network(name)]) and time.monotonic() < limit:
        for pid in left:  # nobody but the cluster's own processes is in its namespaces
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)
    for name in spaces:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    for device in os.listdir("/sys/class/net"):
        if device.startswith(f"{_devices(number)}v"):
            subprocess.run(["ip", "link", "del", device], capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["ip", "link", "del", _bridge(number)], capture_output=True)  # last: it is the claim on the number


def _take_number() -> int:
    """A free number, taken: the kernel makes a device of one name only once."""
    for number in range(256):
        made = subprocess.run(["ip", "link", "add", _bridge(number), "type", "bridge"], capture_output=True, text=True)
        if made.returncode == 0:
            _ip(
                "link", "set", _bridge(number), "address", f"02:93:{number:02x}:00:00:01"
            )  # else an unplugged host changes it
            _ip("link", "set", _bridge(number), "type", "bridge", "forward_delay", "0")
            _ip("addr", "add", f"{NET}.{number}.254/24", "dev", _bridge(number))
            _ip("link", "set", _bridge(number), "up")
            return number
        if "exists" not in made.stderr:
            break
    raise AssertionError(f"no bridge could be made: {made.stderr}")


def _write_files(hosts: Hosts) -> None:
    folder = hosts.folder
    for name in ("id", "hostkey"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "shoal-test", "-f", str(folder / name)], check=True
        )
    addresses = {name: hosts.address(name) for name in hosts.names}
    lines = ["127.0.0.1 localhost", f"{hosts.address_of_head} head"]
    lines += [f"{address} {name}" for name, address in addresses.items()]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    # No name server is within reach: without this every look-up would wait for one.
    (folder / "nsswitch").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(folder=folder))
    known = " ".join((folder / "hostkey.pub").read_text().split()[:2])
    hosts.known_hosts.write_text("".join(f"{name},{address} {known}\n" for name, address in addresses.items()))
    places = "".join(f"Host {name}\n  HostName {address}\n" for name, address in addresses.items())
    hosts.ssh_config.write_text(places + SSH_CONFIG.format(folder=folder))


def _lay_cable(hosts: Hosts, name: str) -> None:
    space, cable = _netns(hosts.number, name), hosts._cable(name)
    _ip("netns", "add", space)
    _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
    _ip("link", "set", cable, "master", _bridge(hosts.number), "up")
    _ip("-n", space, "link", "set", "lo", "up")
    _ip("-n", space, "addr", "add", f"{hosts.address(name)}/24", "dev", "eth0")
    _ip("-n", space, "link", "set", "eth0", "up")
    _ip("-n", space, "route", "add", "default", "via", hosts.address_of_head)


def _power_on(number: int, folder: Path, name: str) -> None:
    setup = f"""
        hostname {name}
        mount --make-rprivate /
        mount --bind {folder}/hosts /etc/hosts
        mount --bind {folder}/nsswitch /etc/nsswitch.conf
        mount -t tmpfs -o size=50% shm /dev/shm
        mount -t tmpfs -o mode=755 run /run
        mkdir -p /run/sshd
        {SSHD} -D -e -f {folder}/sshd_config &
        exec {shlex.quote(sys.executable)} -S -c '{_INIT}'
    """
    unshare = ["unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    home = os.environ.get("HOME", "/root")
    clean = ["env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", f"HOME={home}"]
    with open(folder / f"{name}.log", "ab") as log:
        outer = subprocess.Popen(
            ["ip", "netns", "exec", _netns(number, name), *unshare, *clean, "sh", "-e", "-c", setup],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    limit = time.monotonic() + UP_S
    while not (found := children.read_text().split() if children.exists() else []):
        assert time.monotonic() < limit, f"{name} did not start: {(folder / f'{name}.log').read_text()}"
        time.sleep(0.005)
    (folder / f"{name}.pid").write_text(found[0])


_INIT = """
import os
while True:
    try: os.wait()
    except ChildProcessError: break
"""
"""Process 1 of a host: reaps orphans."""


def _devices(number: int) -> str:
    return f"{PREFIX}{number}"


def _bridge(number: int) -> str:
    return f"{_devices(number)}br"


def _netns(number: int, name: str) -> str:
    return f"{_devices(number)}-{name}"


def _ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {shlex.join(args)}: {done.stderr}"


def _in_network(space: str) -> list[int]:
    """Processes in a network namespace."""
    try:
        wanted = os.stat(f"/run/netns/{space}").st_ino
    except FileNotFoundError:
        return []
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.stat(f"/proc/{entry}/ns/net").st_ino == wanted:
                    found.append(int(entry))
            except OSError:
                continue
    return found


if __name__ == "__main__":  # the keeper
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    sys.stdin.read()
    down(int(sys.argv[1]), Path(sys.argv[2]))
