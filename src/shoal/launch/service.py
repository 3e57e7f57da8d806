"""Service (run as a program by launcher yarn): one service of YARN's own application master, from POST to DELETE."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

POLL_S = 2.0
_ANSWER_S = 30.0


def main() -> int:
    """argv: JSON with `url` of the ResourceManager, `user`, `names` of variables for containers, and the `service`."""
    asked = json.loads(sys.argv[1])
    service = asked["service"]
    env = {name: os.environ[name] for name in asked["names"] if name in os.environ}
    for component in service["components"]:
        component["configuration"]["env"] |= env
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        _call(asked, "POST", "", service)
    except OSError as error:
        print(_why(error), flush=True)
        return 1
    try:
        return _watch(asked, service["name"])
    finally:
        with contextlib.suppress(OSError):
            _call(asked, "DELETE", f"/{service['name']}")


def _watch(asked: dict[str, Any], name: str) -> int:
    """Until the service has ended. It outlives its containers where YARN keeps it, so their end counts."""
    told = ""
    while True:
        time.sleep(POLL_S)
        try:
            said = _call(asked, "GET", f"/{name}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                print(f"the service {name} is no longer there", flush=True)
                return 1
            continue
        except OSError:
            continue  # the ResourceManager may be away for a while
        state = said.get("state", "?")
        if state != told:
            told = state
            print(f"YARN service {name}: {state} {said.get('diagnostics', '')}".rstrip(), flush=True)
        if state in ("FAILED", "STOPPED", "SUCCEEDED"):
            return 1 if state == "FAILED" else 0


def _call(asked: dict[str, Any], verb: str, path: str, body: object = None) -> dict[str, Any]:
    query = f"?{urllib.parse.urlencode({'user.name': asked['user']})}" if asked["user"] else ""
    data = json.dumps(body).encode() if body is not None else None
    url = f"{asked['url'].rstrip('/')}/app/v1/services{path}{query}"
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=verb)
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
        said = answer.read()
    return json.loads(said) if said else {}


def _why(error: OSError) -> str:
    """In YARN's own words."""
    if not isinstance(error, urllib.error.HTTPError):
        return f"the ResourceManager does not answer: {error}"
    text = error.read().decode(errors="replace")
    with contextlib.suppress(ValueError, AttributeError):
        text = json.loads(text).get("diagnostics") or text
    return f"HTTP {error.code}: {text.strip() or error.reason}"


if __name__ == "__main__":
    sys.exit(main())
