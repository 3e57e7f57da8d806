"""Between hosts: TLS 1.3 with the job's certificate, or an explicit word. Two loopback addresses play two hosts."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import torch
from servers import LIMITS, SECRET, Serving

from shoal.kvstore import tls
from shoal.kvstore.client import Client, ServerError
from shoal.kvstore.layout import Layout, Limits, Terms
from shoal.kvstore.tls import Cover, make_certificate
from shoal.kvstore.updater import describe

SIZE = 300_000
SHORT = Limits(start_s=1.0, return_s=1.0)


@pytest.fixture
def certificate(tmp_path) -> Path:
    make_certificate(tmp_path / "job.pem")
    assert (tmp_path / "job.pem").stat().st_mode & 0o777 == 0o600
    return tmp_path / "job.pem"


@pytest.fixture
def apart(monkeypatch):
    monkeypatch.setattr(tls, "_same_host", lambda connection: False)


def train(there: Serving, cover: Cover) -> Client:
    client = Client(there.addresses, 0, 1, SECRET, limits=SHORT, shared_memory=False, cover=cover)
    tensors = [torch.zeros(SIZE)]
    flat = torch.zeros(SIZE)
    description = describe(torch.optim.SGD(tensors, lr=1.0), tensors)
    client.init(flat, Layout.of([("a", tensors[0])]), description, Terms())
    for step in range(3):
        client.push(0, torch.ones(SIZE))
        client.commit(step, lr=1.0)
        client.pull(flat)
    assert (flat == -3).all()
    client.close()
    there.end()
    assert there.codes == {0: 0}
    return client


def serve(cover: Cover) -> Serving:
    return Serving(1, limits=LIMITS, cover=cover)


def test_a_certificate_covers_it(apart, certificate):
    client = train(serve(Cover(certificate)), Cover(certificate))
    connection = client._links[0]._wire._connection
    assert isinstance(connection, ssl.SSLSocket)


def test_an_explicit_word_does_without(apart):
    client = train(serve(Cover(plain=True)), Cover(plain=True))
    assert not isinstance(client._links[0]._wire._connection, ssl.SSLSocket)


def test_one_host_does_without(certificate):
    client = train(serve(Cover(certificate)), Cover(certificate))
    assert not isinstance(client._links[0]._wire._connection, ssl.SSLSocket)


@pytest.mark.parametrize("case", ["nothing", "worker only", "server plain", "other certificate"])
def test_otherwise_there_is_no_connection(apart, certificate, tmp_path, case):
    if case == "other certificate":
        make_certificate(tmp_path / "other.pem")
    servers = {"nothing": Cover(), "worker only": Cover(), "server plain": Cover(plain=True)}
    there = serve(servers.get(case, Cover(tmp_path / "other.pem")))
    with pytest.raises((ServerError, tls.UsageError)) as caught:
        train(there, Cover() if case == "nothing" else Cover(certificate))
    if case == "server plain":
        assert "is on another host: encryption needs the job's certificate" in str(caught.value)
    elif case != "other certificate":
        assert any("another host: encryption needs the job's certificate" in line for line in there.told)
    for server in there.servers:
        server.rounds.fail("the test is over")
