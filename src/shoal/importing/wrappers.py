"""Wrappers: torchrun, torch.distributed.launch, horovodrun, paddle.distributed.launch, MXNet's launch.py, srun, mpirun.

They are taken off the front of a command; what they said becomes a Spread, and that the words of `shoal train`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath

from shoal.base.errors import UsageError
from shoal.importing.findings import Findings
from shoal.importing.flags import Flags
from shoal.importing.settings import Settings, number
from shoal.importing.words import Command, Word

ON_EACH_NODE = "once is enough with -H NODE0,NODE1; by hand as here, the nodes need one --secret-file, too"


@dataclass
class Spread:
    """How an old job was spread over processes and hosts; None: nobody said."""

    workers: int | None = None
    """Processes that train, in all."""
    per_node: int | None = None
    nodes: int | None = None
    servers: int | None = None
    hosts: str | None = None
    ips: str | None = None
    node_rank: int | None = None
    rendezvous: str | None = None
    devices: str | None = None
    launcher: str | None = None
    by: str | None = None
    """The wrapper that said it, None where there was none."""
    more: list[str] = field(default_factory=list)
    """Further words of `shoal train`."""

    @property
    def total(self) -> int | None:
        """Workers in all, where it is known."""
        if self.workers is not None:
            return self.workers
        return self.per_node * (self.nodes or 1) if self.per_node is not None else None

    def words(self) -> list[str]:
        """What `shoal train` is to be told."""
        words = []
        if self.node_rank is not None and (self.nodes or 1) > 1:
            words += ["--node-rank", str(self.node_rank), "--num-nodes", str(self.nodes)]
            words += ["--rendezvous", self.rendezvous or "NODE0:29500"]
            words += ["--nproc-per-node", str(self.per_node)] if self.per_node else []
        elif self.total is not None:
            words += ["-n", str(self.total)]
        for flag, value in (("-s", self.servers), ("-H", self.hosts), ("--ips", self.ips)):
            words += [flag, str(value)] if value is not None else []
        if self.devices is not None and not (self.hosts or self.ips):
            words += ["--devices", self.devices]
        words += ["--launcher", self.launcher] if self.launcher else []
        return words + self.more


def unwrap(command: Command, findings: Findings) -> tuple[Spread, list[Word]]:
    """How it is spread, and the words of the script alone: `main.py -a resnet50 …`."""
    spread = Spread(devices=command.env.get("CUDA_VISIBLE_DEVICES") or None)
    words = command.words
    while words:
        name, module = PurePath(words[0].text).name, words[2].text if len(words) > 2 else ""
        if name.startswith("python") and len(words) > 2 and words[1].text == "-m":
            words = _module(module, words[3:], spread, findings)
        elif name.startswith("python") and len(words) > 1:
            words = words[1:]
            while words and words[0].text in ("-u", "-O", "-B", "--"):
                words = words[1:]
        elif name == "torchrun":
            words = _torch(words[1:], spread, findings)
        elif name == "horovodrun":
            words = _horovod(words[1:], spread)
        elif name == "fleetrun":
            words = _paddle(words[1:], spread, findings)
        elif name == "srun":
            words = _srun(words[1:], spread, findings)
        elif name in ("mpirun", "mpiexec"):
            words = _mpirun(words[1:], spread)
        elif name == "launch.py":
            words = _mxnet(words[1:], spread, findings)
        else:
            break
    if spread.devices and spread.total and spread.by and not spread.nodes:
        spread.devices = spread.devices if len(spread.devices.split(",")) >= spread.total else None
    return spread, list(words)


def _module(module: str, words: list[Word], spread: Spread, findings: Findings) -> list[Word]:
    if module in ("torch.distributed.launch", "torch.distributed.run"):
        return _torch(words, spread, findings)
    if module in ("paddle.distributed.launch", "paddle.distributed.fleet.launch"):
        return _paddle(words, spread, findings)
    raise UsageError(f"python -m {module}: no module that starts a training known here")


def _torch(words: list[Word], spread: Spread, findings: Findings) -> list[Word]:
    flags = Flags("torch's launcher")
    flags.value("--nproc-per-node/--nproc_per_node", "--nnodes", "--node-rank/--node_rank")
    flags.value("--master-addr/--master_addr", "--master-port/--master_port", "--max-restarts/--max_restarts")
    flags.value("--rdzv-endpoint/--rdzv_endpoint", "--rdzv-backend/--rdzv_backend", "--rdzv-id/--rdzv_id")
    flags.value("--log-dir/--log_dir", "--tee/-t", "--redirects/-r", "--monitor-interval/--monitor_interval")
    flags.switch("--standalone", "--use-env/--use_env", "--no-python/--no_python", "-m/--module")
    told, rest = flags.head(words)
    spread.by = "torch's launcher"
    spread.per_node = _processes(told, "nproc_per_node", 1)
    nodes = told.text("nnodes", "1").partition(":")[2] or told.text("nnodes", "1")
    spread.nodes = _whole(nodes, "--nnodes")
    if spread.nodes > 1:
        spread.node_rank = _whole(told.text("node_rank", "0"), "--node_rank", least=0)
        if spread.node_rank >= spread.nodes:
            raise UsageError(f"--node_rank {spread.node_rank} contradicts --nnodes {spread.nodes}")
        address = f"{told.text('master_addr', 'NODE0')}:{told.text('master_port', '29500')}"
        spread.rendezvous = told.text("rdzv_endpoint") or address
        findings.leave(rest[0].where if rest else "command line", "a command on each node", ON_EACH_NODE)
    if told.has("max_restarts"):
        spread.more += ["--max-restarts", told.text("max_restarts")]
    return rest


def _horovod(words: list[Word], spread: Spread) -> list[Word]:
    flags = Flags("horovodrun")
    flags.value("-np/--num-proc", "-H/--hosts", "-hostfile/--hostfile", "-p/--ssh-port", "--network-interface")
    flags.value(
        "--start-timeout", "--timeline-filename", "--fusion-threshold-mb", "--cycle-time-ms", "--min-np/--min-num-proc"
    )
    flags.switch("--verbose", "--gloo", "--mpi", "--disable-cache", "--autotune", "--use-gloo", "--use-mpi")
    told, rest = flags.head(words)
    spread.by = "horovodrun"
    if not told.has("num_proc") and not told.has("np"):
        raise UsageError("horovodrun: -np N is missing: how many processes?")
    spread.workers = _whole(told.text("num_proc") or told.text("np"), "-np")
    hosts = told.text("hosts") or told.text("H")
    slots = [entry.partition(":") for entry in hosts.split(",") if entry]
    if sum(int(number(count) or 1) for _, _, count in slots) < spread.workers and slots:
        raise UsageError(f"horovodrun: -np {spread.workers} contradicts -H {hosts}: it has fewer slots")
    if any(host not in ("localhost", "127.0.0.1") for host, _, _ in slots):
        spread.hosts = ",".join(host for host, _, _ in slots)
        counts = {count or "1" for _, _, count in slots}
        spread.more += ["--nproc-per-node", counts.pop()] if len(counts) == 1 else []
    elif told.has("hostfile"):
        spread.hosts = told.text("hostfile")
    return rest


def _paddle(words: list[Word], spread: Spread, findings: Findings) -> list[Word]:
    flags = Flags("paddle.distributed.launch")
    flags.value("--gpus/--devices/--selected_gpus/--xpus/--npus", "--ips/--cluster_node_ips", "--log_dir", "--master")
    flags.value("--nproc_per_node", "--nnodes", "--rank", "--job_id", "--backend", "--started_port", "--log_level")
    flags.value("--run_mode", "--servers", "--workers", "--server_num", "--trainer_num", "--host", "--max_restart")
    told, rest = flags.head(words)
    spread.by = "paddle.distributed.launch"
    spread.devices = told.text("gpus") or spread.devices
    cards = len(spread.devices.split(",")) if spread.devices else None
    spread.per_node = _whole(told.text("nproc_per_node"), "--nproc_per_node") if told.has("nproc_per_node") else cards
    if cards is not None and spread.per_node != cards:
        raise UsageError(f"--gpus {spread.devices} contradicts --nproc_per_node {spread.per_node}")
    if ips := told.text("ips"):
        spread.ips, spread.nodes = ips, len(ips.split(","))
    if told.has("nnodes"):
        nodes = _whole(told.text("nnodes").partition(":")[0], "--nnodes")
        if spread.nodes not in (None, nodes):
            raise UsageError(f"--ips {spread.ips} contradicts --nnodes {nodes}")
        spread.nodes = nodes
        if nodes > 1 and not spread.ips:
            spread.node_rank = int(told.number("rank", 0) or 0)
            spread.rendezvous = told.text("master", "NODE0:29500")
    if told.has("log_dir"):
        findings.leave(told.place("log_dir"), f"--log_dir {told.text('log_dir')}", "logs lie in the run folder")
    return rest


def _mxnet(words: list[Word], spread: Spread, findings: Findings) -> list[Word]:
    flags = Flags("launch.py")
    flags.value("-n/--num-workers", "-s/--num-servers", "-H/--hostfile", "--launcher", "--sync-dst-dir", "--queue")
    flags.several("--env", "--env-server", "--env-worker").switch("--p3")
    told, rest = flags.head(words)
    if not told.has("num_workers"):
        raise UsageError("launch.py: -n N is missing: how many workers?")
    spread.by = "launch.py"
    spread.workers = _whole(told.text("num_workers"), "-n")
    spread.servers = int(told.number("num_servers", spread.workers) or 0)
    launcher = told.text("launcher", "ssh")
    if launcher not in ("ssh", "local", "mpi", "sge", "yarn"):
        raise UsageError(f"launch.py: --launcher {launcher}: expected ssh, local, mpi, sge or yarn")
    spread.hosts = told.text("hostfile") or None
    if launcher in ("mpi", "sge", "yarn"):
        spread.launcher = launcher
    elif launcher == "local" and spread.hosts:
        raise UsageError(f"launch.py: --launcher local contradicts -H {spread.hosts}")
    elif launcher == "ssh" and not spread.hosts:
        raise UsageError("launch.py: --launcher ssh (its default) without -H HOSTFILE")
    if told.has("sync_dst_dir"):
        spread.more += ["--sync-dst-dir", told.text("sync_dst_dir")]
    for variable in told.whole("env") or []:
        spread.more += ["--env", variable.replace(":", "=", 1)]
    for key in ("env_server", "env_worker", "queue", "p3"):
        told.leave(key, "no such thing; --env reaches all processes")
    return rest


def _srun(words: list[Word], spread: Spread, findings: Findings) -> list[Word]:
    flags = Flags("srun")
    flags.value("-N/--nodes", "-n/--ntasks", "--ntasks-per-node", "--gres", "--gpus-per-node", "-c/--cpus-per-task")
    flags.value("-p/--partition", "-t/--time", "-J/--job-name", "-A/--account").switch("--exclusive", "-l/--label")
    attached = [part for word in words for part in _apart(word)]
    told, rest = flags.head(attached)
    spread.by, spread.launcher = "srun", "slurm"
    spread.nodes = told.count("nodes", 1)
    gres = told.text("gres").rpartition(":")[2] or told.text("gpus_per_node").rpartition(":")[2]
    per_node = told.count("ntasks_per_node") or (int(gres) if gres.isdigit() else None)
    spread.workers = told.count("ntasks") or (per_node or 1) * (spread.nodes or 1)
    for flag in ("partition", "time", "account"):
        if told.has(flag):
            spread.more += ["--launcher-arg", f"--{flag}={told.text(flag)}"]
    return rest


def _mpirun(words: list[Word], spread: Spread) -> list[Word]:
    spread.by, spread.launcher = "mpirun", "mpi"
    while words and words[0].text.startswith("-"):
        flag, rest = words[0].text, words[1:]
        value = rest[0].text if rest else ""
        if flag in ("-np", "-n"):
            spread.workers = _whole(value, flag)
        elif flag in ("-H", "--host", "--hostfile", "-hostfile"):
            spread.hosts = ",".join(part.partition(":")[0] for part in value.split(","))
        takes = {"-mca": 2, "--mca": 2, "-bind-to": 1, "-map-by": 1, "-x": 1, "-np": 1, "-n": 1}
        takes |= dict.fromkeys(("-H", "--host", "--hostfile", "-hostfile", "--bind-to", "--map-by"), 1)
        words = rest[takes.get(flag, 0) :]
    return words


def _apart(word: Word) -> list[Word]:
    """srun's `-N2` as `-N 2`."""
    text = word.text
    if len(text) > 2 and text[0] == "-" and text[1] in "NnpctJA" and text[2:].isalnum():
        return [Word(text[:2], word.where), Word(text[2:], word.where)]
    return [word]


def _processes(told: Settings, key: str, default: int) -> int | None:
    """A number, or None for torchrun's `gpu` and `auto`, which Shoal finds out as well."""
    text = told.text(key, str(default))
    return None if text in ("gpu", "auto", "cpu") else _whole(text, f"--{key}")


def _whole(text: str, flag: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise UsageError(f"{flag} {text}: expected a whole number >= {least}")
    return int(text)
