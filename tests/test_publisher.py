"""Publishing to a real broker: what arrives, and that nothing which happens to the broker holds anybody up."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import aiomqtt
import pytest
from msgspec.structs import replace

from engines import events
from probes import snapshot, topics
from probes.broker import Broker, parse
from probes.outbound import Outbound
from probes.publisher import Publisher
from probes.spool import Spool
from tests.mqtt_brokers import MOSQUITTO, RealBroker, free_port, wait_until
from tests.synthetic import started, whole_race

needs_mosquitto = pytest.mark.skipif(MOSQUITTO is None, reason="needs mosquitto")


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealBroker]:
    broker = RealBroker(tmp_path)
    broker.start()
    yield broker
    broker.stop()


def at(real: RealBroker, user: str | None = None, password: str | None = None) -> Broker:
    broker = parse(f"mqtt://127.0.0.1:{real.port}/lab/kv", environment={})
    return dataclasses.replace(broker, user=user, password=password)


class Ear:
    """Hears everything under a prefix, as any MQTT client does; `messages` grows in a thread of its own."""

    def __init__(self, broker: Broker, qos: int = 1) -> None:
        self.messages: list[aiomqtt.Message] = []
        self._broker, self._qos = broker, qos
        self._listening, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True)
        self._thread.start()
        assert self._listening.wait(20)

    async def _listen(self) -> None:
        while not self._stopped.is_set():
            try:
                async with aiomqtt.Client(self._broker.host, self._broker.port, clean_session=True) as client:
                    await client.subscribe(f"{self._broker.prefix}/#", self._qos)
                    self._listening.set()
                    async for message in client.messages:
                        self.messages.append(message)
                        if self._stopped.is_set():
                            return
            except aiomqtt.MqttError:
                await asyncio.sleep(0.05)

    def heard(self) -> list[events.AnyEvent]:
        """The events, each once, in the order of their numbers."""
        found = {}
        for message in list(self.messages):
            if message.topic.value.rsplit("/", 1)[1] not in (topics.PRESENCE, topics.SNAPSHOT):
                event = topics.unpack(bytes(message.payload))
                found[event.seq] = event
        return [found[seq] for seq in sorted(found)]

    def presences(self) -> list[str]:
        payloads = [bytes(m.payload) for m in list(self.messages) if m.topic.value.endswith(f"/{topics.PRESENCE}")]
        return [topics.unpack_presence(payload).state if payload else "" for payload in payloads]

    def stop(self) -> None:
        self._stopped.set()


@pytest.fixture
def ear(real: RealBroker) -> Iterator[Ear]:
    listener = Ear(at(real))
    yield listener
    listener.stop()


def token(index: int, engine: str = "h2o") -> events.Token:
    return events.Token(engine=engine, request=0, index=index, token_id=index, text=f" {index}", logprob=-0.1)


def tokens_of(heard: list[events.AnyEvent]) -> list[int]:
    return [event.index for event in heard if isinstance(event, events.Token)]


def test_everything_arrives_in_order_under_its_topic_and_a_snapshot_stays(real: RealBroker, ear: Ear) -> None:
    race = whole_race(prompt_tokens=48, new_tokens=12)
    publisher = Publisher(at(real))
    publisher.start()
    publisher.publish(race)
    words = [event for event in race if isinstance(event, (events.Token, events.Outcome, events.Submitted))]

    def arrived() -> list[events.AnyEvent]:
        kinds = (events.Token, events.Outcome, events.Submitted)
        return [replace(event, seq=0) for event in ear.heard() if isinstance(event, kinds)]

    wait_until(lambda: len(arrived()) == len(words))
    assert arrived() == words
    names = {message.topic.value for message in ear.messages}
    assert f"lab/kv/{publisher.run}/h2o/token" in names
    assert f"lab/kv/{publisher.run}/all/run_started" in names
    seqs = [event.seq for event in ear.heard()]
    assert seqs == list(range(1, len(seqs) + 1))
    late = Ear(at(real))
    wait_until(lambda: len(late.messages) >= 2)
    retained = {m.topic.value.rsplit("/", 1)[1]: bytes(m.payload) for m in late.messages if m.retain}
    assert retained.keys() == {topics.PRESENCE, topics.SNAPSHOT}
    assert topics.unpack_presence(retained[topics.PRESENCE]).engines == ["vllm", "h2o", "infinigen"]
    assert snapshot.unpack(retained[topics.SNAPSHOT]).seq <= seqs[-1]
    assert publisher.close() == 0
    wait_until(lambda: ear.presences()[-2:] == ["ended", ""])
    late.stop()
    after = Ear(at(real))
    probe = Publisher(at(real))
    probe.start()
    wait_until(lambda: after.presences())  # what was retained would have come before
    assert after.presences() == ["live"]
    probe.close()
    after.stop()


def test_json_is_the_same_events_for_those_who_read_json(real: RealBroker, ear: Ear) -> None:
    with closing(Publisher(at(real), json=True)) as publisher:
        publisher.start()
        said = [started(), replace(token(0, "h2o+"), logprob=float("-inf"))]
        said += [event for event in whole_race(prompt_tokens=40, new_tokens=5) if isinstance(event, events.Memory)][:1]
        publisher.publish(said)
        wait_until(lambda: len(ear.heard()) == 3)
    by_topic = {message.topic.value: bytes(message.payload) for message in ear.messages}
    memory = json.loads(by_topic[f"lab/kv/{publisher.run}/vllm/memory"])
    assert memory["type"] == "Memory"
    assert memory["device_bytes"]["weights"] > 0
    assert json.loads(by_topic[f"lab/kv/{publisher.run}/h2o-plus/token"])["engine"] == "h2o+"
    assert replace(ear.heard()[0], seq=0) == said[0]
    assert replace(ear.heard()[2], seq=0) == said[2]


def test_a_restart_in_mid_run_loses_no_token(real: RealBroker, ear: Ear) -> None:
    with closing(Publisher(at(real))) as publisher:
        publisher.start()
        publisher.publish([token(index) for index in range(50)])
        wait_until(lambda: len(tokens_of(ear.heard())) == 50)
        real.stop()
        wait_until(lambda: publisher.standing.state == "waiting")
        publisher.publish([token(index) for index in range(50, 90)])
        publisher.publish([events.Sample(worker_rss_bytes=size) for size in range(100)])
        wait_until(lambda: publisher.waiting == 41)  # of the samples, the newest
        real.start()
        wait_until(lambda: publisher.standing.state == "connected")
        wait_until(lambda: publisher.waiting == 0)
        listener = Ear(at(real))
        wait_until(lambda: any(m.topic.value.endswith(topics.SNAPSHOT) for m in listener.messages))
        packed = next(bytes(m.payload) for m in listener.messages if m.topic.value.endswith(topics.SNAPSHOT))
        wait_until(lambda: publisher.waiting == 0)
        assert snapshot.unpack(packed).seq >= 50
        wait_until(lambda: len(tokens_of(latest_snapshot(listener))) == 90)
        assert tokens_of(latest_snapshot(listener)) == list(range(90))
        listener.stop()


def latest_snapshot(ear: Ear) -> list[events.AnyEvent]:
    packed = [bytes(m.payload) for m in list(ear.messages) if m.topic.value.endswith(f"/{topics.SNAPSHOT}")]
    return snapshot.unpack(packed[-1]).said if packed and packed[-1] else []


@pytest.mark.parametrize("kind", ["absent", "frozen"])
def test_a_broker_that_does_not_answer_holds_nobody_up(real: RealBroker, kind: str) -> None:
    publisher = Publisher(at(real))
    publisher.start()
    wait_until(lambda: publisher.standing.state == "connected")
    real.stop() if kind == "absent" else real.freeze()
    race = whole_race(prompt_tokens=64, new_tokens=60)
    longest_s = 0.0
    for event in race:
        begun_s = time.monotonic()
        publisher.publish([event])
        longest_s = max(longest_s, time.monotonic() - begun_s)
    left = publisher.close()
    if kind == "frozen":
        real.thaw()
    assert longest_s < 1.0  # it hands over, no more
    words = sum(isinstance(event, (events.Token, events.Outcome)) for event in race)
    assert left > words / 2
    if kind == "absent":
        assert left >= words


def test_closing_waits_a_moment_and_no_longer(real: RealBroker) -> None:
    publisher = Publisher(at(real))
    publisher.start()
    wait_until(lambda: publisher.standing.state == "connected")
    real.freeze()
    publisher.publish([token(index) for index in range(5)])
    closed = threading.Event()
    threading.Thread(target=lambda: (publisher.close(), closed.set()), daemon=True).start()
    try:
        assert closed.wait(5)
    finally:
        real.thaw()


def test_what_a_lost_connection_leaves_behind_is_not_printed(real: RealBroker, caplog) -> None:
    class Left(Publisher):
        async def serve(self, client: aiomqtt.Client) -> None:
            nobody_asks = asyncio.get_running_loop().create_future()
            nobody_asks.set_exception(aiomqtt.MqttCodeError(16, "Unexpected disconnection"))
            del nobody_asks
            wrong = asyncio.get_running_loop().create_future()
            wrong.set_exception(AttributeError("a mistake of ours"))
            del wrong
            gc.collect()
            await super().serve(client)

    publisher = Left(at(real))
    publisher.start()
    wait_until(lambda: publisher.standing.state == "connected")
    real.freeze()
    publisher.publish([events.Status(run="r", state="idle")] * 20)
    publisher.close(0.2)
    real.thaw()
    gc.collect()
    assert "a mistake of ours" in caplog.text
    assert "Unexpected disconnection" not in caplog.text


def test_what_cannot_be_kept_is_counted() -> None:
    outbound = Outbound(Spool(in_memory=10, limit_bytes=500))
    publisher = Publisher(parse(f"mqtt://127.0.0.1:{free_port()}/x", environment={}), outbound=outbound)
    publisher.start()
    publisher.publish([token(index) for index in range(100)])
    wait_until(lambda: publisher.lost)
    left = publisher.close()
    assert left + publisher.lost == 100


@needs_mosquitto
def test_a_killed_publisher_is_shown_as_gone(real: RealBroker, ear: Ear, tmp_path: Path) -> None:
    code = (
        "import time\nfrom probes.broker import parse\nfrom probes.publisher import Publisher\n"
        f"p = Publisher(parse('mqtt://127.0.0.1:{real.port}/lab/kv', environment={{}}))\n"
        "p.start()\ntime.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_until(lambda: ear.presences() == ["live"])
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: ear.presences() == ["live", "gone"])


@needs_mosquitto
def test_a_wrong_password_is_tried_once(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    tool = shutil.which("mosquitto_passwd")
    assert tool is not None
    subprocess.run([tool, "-b", "-c", str(passwords), "ann", "right"], check=True, capture_output=True)
    real = RealBroker(tmp_path, "allow_anonymous false", f"password_file {passwords}")
    real.start()
    try:
        with closing(Publisher(at(real, user="ann", password="wrong"))) as refused:
            refused.start()
            wait_until(lambda: refused.standing.state == "off")
            assert "not authorised" in refused.standing.detail or "password" in refused.standing.detail
        with closing(Publisher(at(real, user="ann", password="right"))) as taken:
            taken.start()
            wait_until(lambda: taken.standing.state == "connected")
    finally:
        real.stop()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, another.pem that signed nothing, server.pem and server.key for 127.0.0.1."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("certificates")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "another"):
        run("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2", "-subj", f"/CN={name}")
    run("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nauthorityKeyIdentifier=keyid\n", "utf-8")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    run("x509", "-req", "-in", "server.csr", *signed, "-out", "server.pem")
    return folder


@needs_mosquitto
def test_tls_by_the_right_authority_and_no_other(certificates: Path, tmp_path: Path) -> None:
    settings = (f"certfile {certificates}/server.pem", f"keyfile {certificates}/server.key", "allow_anonymous true")
    real = RealBroker(tmp_path, *settings)
    real.start()
    try:
        url = f"mqtts://127.0.0.1:{real.port}/lab/kv"
        with closing(Publisher(parse(url, certificates / "ca.pem", {}))) as trusting:
            trusting.start()
            wait_until(lambda: trusting.standing.state != "waiting")
            assert trusting.standing.detail == ""
            trusting.publish([token(0)])
            wait_until(lambda: trusting.waiting == 0)
        with closing(Publisher(parse(url, certificates / "another.pem", {}))) as wary:
            wary.start()
            wait_until(lambda: wary.standing.state == "off")
            assert "not trusted" in wary.standing.detail
    finally:
        real.stop()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="needs mosquitto_sub")
def test_a_hundred_thousand_messages_a_minute(real: RealBroker, tmp_path: Path) -> None:
    """For a minute, with somebody who listens in a process of their own: a listener in this one would be slower than
    the broker's queue for it is long."""
    many, seconds = 100_000, 60
    heard = tmp_path / "heard"
    command = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(real.port), "-t", "lab/kv/+/h2o/#", "-q", "1", "-F", "%t"]
    with (
        heard.open("wb") as out,
        subprocess.Popen(command, stdout=out) as listener,
        closing(at_work(real)) as publisher,
    ):
        wait_until(lambda: _hears(publisher, heard), 20)
        begun_s = time.monotonic()
        for number in range(many):
            publisher.publish([token(number)])
            time.sleep(max(0.0, begun_s + number * seconds / many - time.monotonic()))
        wait_until(lambda: publisher.waiting == 0, 60)
        wait_until(lambda: heard.read_bytes().count(b"/token\n") >= many, 60)
        listener.terminate()
    assert heard.read_bytes().count(b"/token\n") == many


def at_work(real: RealBroker) -> Publisher:
    publisher = Publisher(at(real))
    publisher.start()
    return publisher


def _hears(publisher: Publisher, heard: Path) -> bool:
    """Says something, until somebody has heard it."""
    publisher.publish([events.Notice(level="info", text="is anybody there?", engine="h2o")])
    time.sleep(0.2)
    return heard.stat().st_size > 0
