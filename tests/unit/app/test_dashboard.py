from __future__ import annotations

import http.client
import socket
import threading

import pytest

from optimizer.app.dashboard import open_dashboard
from optimizer.core.errors import HostError, InputError


def test_it_answers_on_a_free_port_until_it_is_shut_down(history):
    with open_dashboard(history, "tiny-cpu", host="127.0.0.1", port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
            connection.request("GET", server.url.removeprefix(f"http://127.0.0.1:{server.server_port}"))
            answer = connection.getresponse()
            assert answer.status == 200
            assert "text/html" in str(answer.headers["Content-Type"])
            assert answer.read()
            connection.close()
        finally:
            server.shutdown()
            thread.join()


def test_a_taken_port_is_the_host_s_trouble(history):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(HostError, match=f"cannot listen on 127.0.0.1:{port}"),
            open_dashboard(history, None, host="127.0.0.1", port=port),
        ):
            pass


def test_an_unknown_study_is_refused(history):
    with pytest.raises(InputError, match="--study nosuch"), open_dashboard(history, "nosuch", host="127.0.0.1", port=0):
        pass
