"""Spread (run as a program by launcher ray): an actor on each of so many Ray nodes, which runs the agent there.

It needs the package `ray`, and nothing of Shoal's: an actor's code travels to nodes whose Python may have none of it.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> int:
    """argv: JSON with `nodes`, `resources` of a bundle, `argv` of the agent, `names` of the variables that it gets."""
    import ray  # pyright: ignore[reportMissingImports]
    from ray.util.placement_group import placement_group  # pyright: ignore[reportMissingImports]
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # pyright: ignore[reportMissingImports]

    asked = json.loads(sys.argv[1])
    ray.init(address=asked["cluster"] or "auto", log_to_driver=False, logging_level="ERROR")

    class Place:
        """One node's."""

        def run(self, argv: list[str], env: dict[str, str]) -> int:
            import os
            import subprocess

            return subprocess.call(argv, env={**os.environ, **env}, stdin=subprocess.DEVNULL)

    bundles = [asked["resources"]] * asked["nodes"]
    group = placement_group(bundles, strategy="STRICT_SPREAD")
    wanted = f"{asked['nodes']} nodes with {asked['resources']} each"
    while not group.wait(10):
        print(f"Ray has not got {wanted} yet; the cluster has {ray.available_resources()}", flush=True)
    env = {name: os.environ[name] for name in asked["names"] if name in os.environ}
    resources = dict(asked["resources"])
    cpus, gpus = resources.pop("CPU", 0), resources.pop("GPU", 0)
    actor = ray.remote(Place)
    runs = []
    for node in range(asked["nodes"]):
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)
        place = actor.options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=where).remote()
        runs.append((place, place.run.remote(asked["argv"], {**env, asked["rank"]: str(node)})))
    left = [run for _, run in runs]
    while left:
        done, left = ray.wait(left)
        for one in done:
            try:
                if code := ray.get(one):
                    print(f"an agent ended with exit {code}", flush=True)
                    return 1
            except ray.exceptions.RayError as error:
                print(str(error).strip().splitlines()[0], flush=True)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
