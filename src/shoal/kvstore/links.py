"""Links: one worker's connections to all servers, and the small things that every kind of store asks of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any

from shoal.kvstore.layout import Limits
from shoal.kvstore.link import Link, RolledBack
from shoal.kvstore.tls import Cover
from shoal.kvstore.wire import Op


class Links:
    """Waits for servers that do not listen yet. ServerError: one failed; the others' rounds are left, too."""

    def __init__(
        self,
        addresses: Sequence[str],
        rank: int,
        num_ranks: int,
        secret: bytes,
        limits: Limits,
        cover: Cover,
        tell: Callable[[str], None],
    ) -> None:
        self.session = secrets.token_bytes(8)
        """Of this life of the worker."""
        self._num_ranks = num_ranks
        self._links = [
            Link(address, number, len(addresses), rank, num_ranks, self.session, secret, limits, tell, cover)
            for number, address in enumerate(addresses)
        ]
        self.each(lambda link, number: link.connect(limits.start_s))

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links)

    def __getitem__(self, number: int) -> Link:
        return self._links[number]

    def __len__(self) -> int:
        return len(self._links)

    @property
    def bytes_sent(self) -> int:
        return sum(link.bytes_sent for link in self._links)

    def each(self, work: Callable[[Link, int], Any]) -> list[Any]:
        """On all links at once."""
        if len(self._links) == 1:
            return [self.first(lambda link: work(link, 0))]
        return self.wait([link.submit(work, link, number) for number, link in enumerate(self._links)])

    def first(self, work: Callable[[Link], Any]) -> Any:
        """What only server 0 is asked."""
        link = self._links[0]
        if len(self._links) > 1:
            return self.wait([link.submit(work, link)])[0]
        try:
            return link.do(work, link)
        except BaseException as error:
            link.interrupt()
            if isinstance(error, RolledBack):
                link.again(link.rollbacks)
            raise

    def wait(self, futures: list[Future]) -> list[Any]:
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = [error for future in done if (error := future.exception()) is not None]
        if failed:
            # The other servers wait for workers that will not come: leave their rounds, and stay in touch.
            for link in self._links:
                link.interrupt()
            wait(futures)
            rolled = [error for future in futures if isinstance(error := future.exception(), RolledBack)]
            if rolled:
                rollbacks = max(link.rollbacks for link in self._links)
                wait([link.submit(link.again, rollbacks) for link in self._links])
                raise rolled[0]
            raise failed[0]
        return [future.result() for future in futures]

    @property
    def live(self) -> list[int]:
        """Workers who were there when this one heard of it last."""
        return [rank for rank in range(self._num_ranks) if rank not in self._links[0].gone]

    @live.setter
    def live(self, ranks: Sequence[int]) -> None:
        gone = sorted(set(range(self._num_ranks)) - set(ranks))
        for link in self._links:
            link.gone = gone

    def barrier(self) -> None:
        """Waits until every live worker is here."""
        self.first(lambda link: link.small(Op.BARRIER, numbered=True))

    def num_dead(self) -> int:
        """Workers that were there and went away without a goodbye."""
        return self.first(lambda link: link.small(Op.DEAD)).count

    def close(self) -> None:
        """Goodbye: rounds no longer wait for this worker, and the servers end with the last one."""
        for link in self._links:
            link.submit(link.goodbye)
        for link in self._links:
            link.close()
