"""Calibration: what one worker of a recipe does by itself, and what its exchange costs beside the link."""

from __future__ import annotations

import msgspec

from shoal.strategies.divided.balance import balanced, sums


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds, sizes bytes. What was not measured is 0 and so left out of the forecast."""

    source: str
    """Where the figures come from, in words."""
    device: str = "cpu"
    """cpu: nothing is computed while bytes are moved. cuda, or unknown: the exchange goes on beside."""
    images_per_epoch: int
    val_images: int = 0

    parameters: int
    """Trainable numbers."""
    gradient_bytes: int
    side_bytes: int = 0
    """Buffers (BatchNorm's statistics), exchanged beside the gradients in float64."""
    gradients: list[tuple[int, float]] = []
    """(bytes, when known) of each parameter's gradient as the backward pass makes them; when: share of the shard's
    time. Empty: all at the end."""
    forward: float = 1 / 3
    """Share of the shard's time after which its forward pass is done, and its buffers are known."""
    blocks: int = 1
    """Pieces of the model that fsdp gathers one after another."""
    layers: list[tuple[float, float]] = []
    """(share of a shard's time, bytes of one image's activations behind it) of what lies between the places where a
    pipeline can be cut, in order. Empty: stages take equally long, at no bytes."""

    shard_s: float = 0.0
    """Forward and backward pass of a shard, whatever its size …"""
    image_s: float
    """… and for each of its images."""
    measured_images: int = 0
    """Of the largest shard that was measured; larger ones are taken to go on as a line. 0: none was."""
    update_s: float = 0.0
    """What a step costs beside: checking, updating, counting."""
    load_image_s: float = 0.0
    """One worker's images come so far apart when nothing else is done."""
    eval_image_s: float = 0.0
    save_s: float = 0.0
    """A checkpoint."""
    jitter: float = 0.0
    """Standard deviation of a step's time over its mean, from one step to the next."""
    uneven: float = 0.0
    """Of those who computed together, how much longer than their mean the slowest took, again and again."""
    spread: float = 0.0
    """Of the speed, from one block of the measurement to another, over its mean."""

    hop_s: float = 0.0
    """One message of an all-reduce, beside the link's latency."""
    sum_byte_s: float = 0.0
    """Sending, receiving and adding one byte in an all-reduce."""
    core_hop_s: float = 0.0
    """Of a message of an all-reduce, the time in which a core of this worker is busy …"""
    core_byte_s: float = 0.0
    """… and of each of its bytes."""
    bucket_s: float = 0.0
    """What DistributedDataParallel adds to a step's passes itself: hooks, copies, buckets."""
    call_s: float = 0.0
    """One question to a parameter server and its answer, beside the link's latency."""
    serve_byte_s: float = 0.0
    """One byte through a parameter server, in or out."""
    share_byte_s: float = 0.0
    """The same for a worker on the server's host, through shared memory."""

    def stages(self, count: int) -> tuple[float, float]:
        """(share of a shard's time that the slowest of so many stages takes, bytes an image at the widest cut)."""
        shares = [share for share, _ in self.layers]
        cuts = balanced(shares, count, [True] * len(shares)) if count <= len(shares) else None
        if cuts is None:
            return 1 / count, 0.0
        return max(sums(shares, cuts)), max((self.layers[number][1] for number in cuts), default=0.0)

    def shard(self, images: float) -> float:
        """Seconds of one shard's forward and backward pass."""
        return self.shard_s + self.image_s * images if images else 0.0


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts of one kind on a full-duplex switch that is never the bottleneck."""

    byte_s: float
    """One byte through a host's port, one way; 0: no limit."""
    latency_s: float = 0.0
    """From one host to another, one way."""
    per_host: int = 1
    """Workers on a host."""
    servers: int = 1
    slow: float = 1.0
    """One worker computes so many times slower than the others."""

    def hosts(self, workers: int) -> int:
        return -(-workers // self.per_host)
