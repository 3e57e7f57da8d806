"""Certificate: what covers connections between a job's hosts; both ends show it, and trust that one only."""

from __future__ import annotations

import subprocess

from shoal.base.errors import UsageError

CERTIFICATE_FILE = "SHOAL_CERTIFICATE_FILE"
"""The variable that names the PEM file with the job's certificate and key."""
PLAIN = "SHOAL_PLAIN"
"""Set to 1: connections between hosts are not encrypted."""


def fresh_certificate(days: int = 30) -> bytes:
    """A new certificate and its key, as PEM."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-subj", "/CN=shoal", "-days", str(days), "-keyout", "-", "-out", "-"]
    try:
        return subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(f"no certificate could be made with openssl ({error})") from None
