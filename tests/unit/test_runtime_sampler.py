"""What one look at a server tells, over HTTP with a stand-in of vLLM."""

from __future__ import annotations

import math
import socket
import ssl
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from rljob_runtime.sampler import Look, Sampler, State
from tests.unit.vllm_double import Double, double

PATIENT_S = 60.0
"""No answer of a stand-in takes so long."""


def look(server: Double, **of_sampler: bool) -> Look:
    return Sampler(server.url, timeout_s=PATIENT_S, **of_sampler).look()  # type: ignore[arg-type]


def test_idle_and_busy() -> None:
    with double(seats=2) as server:
        assert look(server).state is State.IDLE
        server.engine.submit(5)
        seen = look(server)
        assert (seen.state, seen.running, seen.waiting) == (State.BUSY, 2, 3)
        assert math.isnan(seen.load)
        server.engine.finish()
        assert look(server).state is State.IDLE


@pytest.mark.parametrize("what", ["paused", "asleep"])
def test_a_halted_engine_is_blind_unless_its_requests_are_counted(what: str) -> None:
    for tracks in (False, True):
        with double(tracks_load=tracks) as server:
            sampler = Sampler(server.url, timeout_s=PATIENT_S)
            server.engine.halt(what, True)
            assert sampler.look().state is State.BLIND, "0 may be none, or not counted"
            assert sampler.look().halted == "paused or asleep", "it does not tell them apart"
            server.engine.submit(3)
            seen = sampler.look()
            assert (seen.running, seen.waiting) == (0, 0), "the metrics stand still"
            assert seen.state is (State.BUSY if tracks else State.BLIND)
            server.engine.lose_clients()
            assert sampler.look().state is (State.IDLE if tracks else State.BLIND), "a count that moved is believed"


def test_whoever_knows_that_requests_are_counted_may_say_so() -> None:
    with double(tracks_load=True, paused=True) as server:
        assert look(server, tracks_load=True).state is State.IDLE
        assert str(look(server, tracks_load=True)) == "paused or asleep, 0 counted by /load"
        assert str(look(server)) == "paused or asleep, its requests unknown"


def test_a_count_below_zero_is_never_believed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with double(tracks_load=True) as server:
        sampler = Sampler(server.url, timeout_s=PATIENT_S, tracks_load=True)
        counted = iter([-1, 0, 3])
        monkeypatch.setattr(server.engine, "load", lambda: next(counted))
        for _ in range(3):
            seen = sampler.look()
            assert seen.state is State.IDLE
            assert math.isnan(seen.load)


def test_a_server_without_the_endpoints_of_training_is_not_halted() -> None:
    with double(dev_mode=False) as server:
        assert look(server).state is State.IDLE


def test_clients_that_went_away_leave_gauges_that_stand_still() -> None:
    with double() as server:
        server.engine.submit(2)
        server.engine.step()
        server.engine.lose_clients(stale=True)
        first, second = look(server), look(server)
        assert first.state is second.state is State.BUSY
        assert first.progress == second.progress


def test_what_moves_while_something_runs() -> None:
    with double() as server:
        server.engine.submit(1, max_tokens=10)
        before = look(server).progress
        server.engine.step()
        assert look(server).progress > before


def test_a_dead_engine() -> None:
    with double() as server:
        server.engine.submit(2)
        server.kill_engine()
        assert look(server).state is State.DEAD
        server.close()
        assert look(server).state is State.GONE


def test_nothing_listens() -> None:
    with double() as server:
        server.close()
        seen = look(server)
        assert seen.state is State.GONE
        assert str(seen) == f"nothing listens at {server.url}"


def test_a_server_that_takes_too_long_is_silent() -> None:
    with double(mute=True) as server:
        assert Sampler(server.url, timeout_s=0.05).look().state is State.SILENT


def test_nothing_is_asked_when_the_time_is_over() -> None:
    with double(mute=True) as server:
        assert Sampler(server.url, timeout_s=PATIENT_S).look(within_s=0.05).state is State.SILENT
        assert server.asked("/metrics") == 0
        assert Sampler(server.url, timeout_s=PATIENT_S).look(within_s=-1.0).state is State.SILENT
    with double(delay_s=0.2) as server:
        seen = Sampler(server.url, timeout_s=PATIENT_S).look(within_s=0.3)
        assert seen.state is State.SILENT, "each answer came soon enough, and all of them would not"
        assert server.asked("/is_paused") == 0


def test_an_answer_that_comes_in_drops_is_not_waited_for_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                while True:
                    connection.sendall(b" ")
                    gone.wait(0.01)

        gone = threading.Event()
        server = threading.Thread(target=drip)
        server.start()
        seen = Sampler(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout_s=0.3).look()
        assert seen.state is State.SILENT
        assert "/health was not answered in time" in str(seen)
        server.join()


def test_answers_that_say_nothing_are_silent() -> None:
    with double(failing=True) as server:
        seen = look(server)
        assert (seen.state, str(seen)) == (State.SILENT, f"{server.url}/metrics answers 500")


def test_another_page_of_metrics_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with double() as server:
        monkeypatch.setattr(server.engine, "metrics", lambda: "up 1.0\n")
        assert "has none of vllm:num_requests_running" in str(look(server))


def test_several_engines_and_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    with double() as server:
        several = "".join(
            f'vllm:num_requests_{what}{{engine="{i}",model_name="a b"}} {i}.0\n'
            for i in (1, 2)
            for what in ("running", "waiting")
        )
        monkeypatch.setattr(server.engine, "metrics", lambda: several)
        assert (look(server).running, look(server).waiting) == (3, 3)
        sglang = 'sglang:num_running_reqs{tp_rank="0"} 0.0\nsglang:num_queue_reqs{tp_rank="0"} 2.0\n'
        monkeypatch.setattr(server.engine, "metrics", lambda: sglang)
        assert (look(server).state, look(server).waiting) == (State.BUSY, 2)


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with double() as server:
        assert look(server).state is State.IDLE


def test_the_double_shuts_down_as_the_engine_does() -> None:
    with double() as server:
        answers: list[bytes] = []
        body = b'{"model": "tiny", "prompt": "1", "max_tokens": 4}'
        request = urllib.request.Request(f"{server.url}/v1/completions", body, {"Content-Type": "application/json"})

        def ask() -> None:
            with urllib.request.urlopen(request, timeout=PATIENT_S) as answer:
                answers.append(answer.read())

        client = threading.Thread(target=ask)
        client.start()
        engine = server.engine
        with engine.changed:
            assert engine.changed.wait_for(lambda: engine.requests, PATIENT_S)
        end = threading.Thread(target=server.terminate, args=(PATIENT_S,))
        end.start()
        with engine.changed:
            engine.changed.wait_for(lambda: engine.stopping, PATIENT_S)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=PATIENT_S)
        assert refused.value.code == 500
        refused.value.close()
        assert look(server).state is State.BUSY, "/health is 200 and the metrics go on"
        for _ in range(4):
            engine.step()
        client.join()
        end.join()
        assert b'"finish_reason": "length"' in answers[0]
        assert look(server).state is State.GONE


def test_a_certificate_for_another_name_is_no_reason_to_cut_samples(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "samplers.example")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now - timedelta(1), now + timedelta(1)
        )
    ).sign(key, hashes.SHA256())
    whole = tmp_path / "server.pem"
    whole.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate.public_bytes(Encoding.PEM)
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(whole)
    with double() as server:
        server._http.socket = context.wrap_socket(server._http.socket, server_side=True)
        server.engine.submit(1)
        seen = Sampler(server.url.replace("http:", "https:"), timeout_s=PATIENT_S).look()
        assert seen.state is State.BUSY, str(seen)
