"""Talking with a command in a container over an engine's socket."""

from __future__ import annotations

import socket
import threading
import tracemalloc

import docker
import pytest

from stackyard.system.stream import Conversation, talk

HEADERS = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"


def frame(text: bytes) -> bytes:
    return b"\x01\0\0\0" + len(text).to_bytes(4, "big") + text


@pytest.fixture
def engine(allow_own_servers):
    """Return the connection to an engine that answers each exec with some bytes, in one write."""
    server = socket.create_server(("127.0.0.1", 0))
    address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    api = docker.APIClient(address, version="1.41", timeout=10)

    def serve(answer: bytes) -> None:
        with server.accept()[0] as link:
            link.recv(65536)
            link.sendall(answer)
            link.shutdown(socket.SHUT_WR)
            while link.recv(65536):  # a connection closed on what was not read is reset
                continue

    def start(answer: bytes):
        threading.Thread(target=serve, args=(answer,), daemon=True).start()
        return api.exec_start("id", socket=True)

    yield start
    api.close()
    server.close()


def test_output_that_comes_together_with_the_headers_is_read(engine):
    wrapped = engine(HEADERS + frame(b"one\ntwo") + frame(b" and\nthree"))
    lines = []
    assert talk(wrapped, None, lines.append) == "one\ntwo and\nthree"
    assert lines == ["one", "two and", "three"]


def test_a_conversation_of_weeks_keeps_nothing_of_what_it_heard(engine):
    count, line = 20_000, b"x" * 200 + b"\n"
    answer = HEADERS + frame(line * 100) * (count // 100)
    heard = [0]

    def hear(text):
        heard[0] += 1

    tracemalloc.start()
    try:
        conversation = Conversation(engine(answer), hear)
        assert conversation.over.wait(30)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    conversation.close()
    assert heard == [count]
    assert held < count * len(line) / 4


def test_a_conversation_hears_what_comes_together_with_the_headers(engine):
    lines = []
    conversation = Conversation(engine(HEADERS + frame(b"ready\n")), lines.append)
    assert conversation.over.wait(10)
    conversation.close()
    assert lines == ["ready"]
