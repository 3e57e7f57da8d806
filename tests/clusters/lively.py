"""What the jobs of the chaos test run: processes that are hard to get rid of, from the standard library alone.

Every one listens on a port of its own, has an ordinary child and a grandchild in a session of its own that nobody
waits for; worker 1 sits in C code that holds Python's lock.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import time

DATA_WORKER = "data-worker"


def main() -> None:
    role, rank = os.environ["SHOAL_ROLE"], int(os.environ["SHOAL_RANK"])
    port = int(os.environ["CHAOS_PORT"]) + {"worker": 0, "server": 100, "scheduler": 200}[role] + rank
    listening = socket.create_server(("0.0.0.0", port))  # held by the children too, as sloppy programs do
    os.set_inheritable(listening.fileno(), True)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        ctypes.CDLL(None).prctl(15, DATA_WORKER.encode(), 0, 0, 0)  # PR_SET_NAME
        while True:
            time.sleep(60)
    subprocess.Popen(["sleep", "600"], close_fds=False)
    ready = os.path.join(os.environ["CHAOS_READY"], f"{role}-{rank}")
    with open(ready, "w") as file:
        file.write(f"{os.getpid()}")
    if (role, rank) == ("worker", 1):
        never, _open = os.pipe()
        while True:
            ctypes.PyDLL(None).read(never, b" ", 1)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    if sys.argv[1:] == ["bystander"]:
        sys.stdin.read()  # until whoever placed it ends
    else:
        main()
