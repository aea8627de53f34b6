"""A TCP proxy in front of a server, which delays every answer."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

_CHUNK_BYTES = 65536


class SlowProxy:
    """Listens at `port` of loopback; each answer to a request comes `delay` seconds later."""

    def __init__(self, port: int, upstream: int, delay: float) -> None:
        self.delay = delay
        self.answers = 0
        self._upstream = upstream
        self._listening = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # else a thread that accepts keeps the port
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        asked = threading.Event()
        with contextlib.suppress(OSError), client:
            server = socket.create_connection(("127.0.0.1", self._upstream))
            with server:
                to = threading.Thread(target=self._ask, args=(client, server, asked), daemon=True)
                to.start()
                self._answer(server, client, asked)

    def _ask(self, client: socket.socket, server: socket.socket, asked: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(_CHUNK_BYTES):
                asked.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket, asked: threading.Event) -> None:
        while data := server.recv(_CHUNK_BYTES):
            if asked.is_set():
                asked.clear()
                self.answers += 1
                time.sleep(self.delay)
            client.sendall(data)
