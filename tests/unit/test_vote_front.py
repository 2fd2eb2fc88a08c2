"""The voting app's front end and its Redis client, against a real redis-server on loopback."""

from __future__ import annotations

import http.client
import importlib.util
import io
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

pytestmark = pytest.mark.unit

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "vote"


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"vote_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def vote():
    path = list(sys.path)
    front = load("front")
    yield front
    sys.path[:] = path


@pytest.fixture(scope="module")
def resp(vote):
    return sys.modules["resp"]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class RedisServer:
    def __init__(self, port: int, folder: str) -> None:
        self.port = port
        arguments = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", folder]
        self._process = subprocess.Popen(["redis-server", *arguments], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)


def need_redis() -> None:
    """A machine without it skips, naming it; in CI nothing may be skipped that a package can bring."""
    if shutil.which("redis-server") is None:
        lack = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        lack("no program redis-server (package redis-server)")


@pytest.fixture
def redis(tmp_path):
    need_redis()
    server = RedisServer(free_port(), str(tmp_path))
    yield server
    server.close()


@pytest.fixture
def serve(vote):
    servers = []

    def start(environ: dict[str, str]):
        server = vote.Front(0, vote.settings(environ))
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server.server_address[1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(port: int, body: str | None = None, path: str = "/", method: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        headers = {} if body is None else {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def at(redis) -> dict[str, str]:
    return {"AZURE_VOTE_BACK_SERVICE_HOST": "127.0.0.1", "AZURE_VOTE_BACK_SERVICE_PORT": str(redis.port)}


def test_a_command_is_an_array_of_bulk_strings(resp):
    assert resp.encode("SET", "Cats", 12) == b"*3\r\n$3\r\nSET\r\n$4\r\nCats\r\n$2\r\n12\r\n"
    assert resp.encode("GET", "Kätzchen") == "*2\r\n$3\r\nGET\r\n$9\r\nKätzchen\r\n".encode()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"+OK\r\n", b"OK"),
        (b":-7\r\n", -7),
        (b"$5\r\nab\r\nc\r\n", b"ab\r\nc"),
        (b"$0\r\n\r\n", b""),
        (b"$-1\r\n", None),
        (b"*-1\r\n", None),
        (b"*2\r\n:1\r\n*1\r\n+x\r\n", [1, [b"x"]]),
    ],
)
def test_each_kind_of_reply_is_read(resp, text, value):
    assert resp.decode(io.BytesIO(text)) == value


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"+OK",
        b"-ERR no\r\n",
        b"HTTP/1.1 400\r\n",
        b":x\r\n",
        b"$5\r\nab\r\n",
        b"$99999999999\r\n",
        b"*9999999\r\n",
    ],
)
def test_anything_else_is_an_error_of_its_own_kind(resp, text):
    with pytest.raises(resp.RedisError):
        resp.decode(io.BytesIO(text))


def test_the_client_counts_in_a_real_redis(resp, redis):
    with resp.Redis("127.0.0.1", redis.port) as client:
        assert client.get("Cats") == 0
        assert client.incr("Cats") == 1
        assert client.incr("Cats") == 2
        client.set("Cats", 40)
        assert client.get("Cats") == 40
        client.call("RPUSH", "list", "x")
        with pytest.raises(resp.RedisError, match="WRONGTYPE"):
            client.incr("list")
        assert client.get("Cats") == 40, "an error reply leaves the connection usable"


def test_no_server_is_an_error_that_says_where(resp):
    port = free_port()
    with pytest.raises(resp.RedisError, match=f"no connection to 127.0.0.1:{port}: Connection refused"):
        resp.Redis("127.0.0.1", port)


def test_the_page_has_the_title_both_counts_and_the_pod(serve, redis):
    port = serve(at(redis))
    status, page = ask(port, path="/?17")
    assert status == 200
    assert "<title>Azure Voting App</title>" in page
    assert "<p>Cats - 0 | Dogs - 0</p>" in page
    assert f"answered by {socket.gethostname()}" in page


def test_a_vote_through_one_front_end_is_read_through_another(serve, redis):
    one, other = serve(at(redis)), serve(at(redis))
    assert "Cats - 1 | Dogs - 0" in ask(one, "vote=Cats")[1]
    assert "Cats - 1 | Dogs - 1" in ask(other, "vote=Dogs")[1]
    assert "Cats - 1 | Dogs - 1" in ask(one)[1]
    assert "Cats - 0 | Dogs - 0" in ask(other, "vote=reset")[1]
    assert "Cats - 0 | Dogs - 0" in ask(one)[1]


def test_many_votes_at_once_are_all_counted(serve, redis):
    port = serve(at(redis))
    threads = [threading.Thread(target=ask, args=(port, "vote=Dogs")) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "Dogs - 40" in ask(port)[1]


@pytest.mark.parametrize(
    ("body", "path", "method", "status"),
    [
        ("vote=Birds", "/", "POST", 400),
        ("", "/", "POST", 400),
        ("vote=" + "C" * 2000, "/", "POST", 413),
        (None, "/favicon.ico", "GET", 404),
        (None, "/", "DELETE", 501),
    ],
)
def test_what_is_no_vote_changes_nothing(serve, redis, body, path, method, status):
    port = serve(at(redis))
    assert ask(port, body, path, method)[0] == status
    assert "Cats - 0 | Dogs - 0" in ask(port)[1]


def test_every_answer_closes_the_connection(serve, redis):
    port = serve(at(redis))
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n")
        data = b""
        while chunk := sock.recv(4096):
            data += chunk
    assert data.startswith(b"HTTP/1.0 200 OK")


def test_without_redis_the_page_says_so_and_comes_right_by_itself(serve, tmp_path):
    need_redis()
    back = free_port()
    port = serve({"AZURE_VOTE_BACK_SERVICE_HOST": "127.0.0.1", "AZURE_VOTE_BACK_SERVICE_PORT": str(back)})
    status, page = ask(port)
    assert status == 503
    assert "<title>Azure Voting App</title>" in page
    assert f"no connection to 127.0.0.1:{back}" in page
    assert ask(port, "vote=Cats")[0] == 503
    assert ask(port, path="/healthz") == (200, "ok\n")
    server = RedisServer(back, str(tmp_path))
    try:
        assert "Cats - 1" in ask(port, "vote=Cats")[1]
    finally:
        server.close()


def test_where_redis_is_comes_from_the_flag_then_the_service_then_the_name(vote):
    service = {"AZURE_VOTE_BACK_SERVICE_HOST": "10.96.0.7", "AZURE_VOTE_BACK_SERVICE_PORT": "6380", "REDIS": "named"}
    assert vote.settings(service, "flag:1234").redis == ("flag", 1234)
    assert vote.settings(service, "flag").redis == ("flag", 6379)
    assert vote.settings(service).redis == ("10.96.0.7", 6380)
    assert vote.settings({"REDIS": "named"}).redis == ("named", 6379)
    assert vote.settings({}).redis is None
    with pytest.raises(ValueError, match="'x' is no port"):
        vote.settings({}, "host:x")


def test_without_a_word_about_redis_the_page_says_what_is_missing(serve):
    status, page = ask(serve({}))
    assert status == 503
    assert "AZURE_VOTE_BACK_SERVICE_HOST is not set" in page


def test_what_is_voted_on_can_be_changed_and_is_escaped(serve, redis):
    port = serve({**at(redis), "TITLE": "Tea & <b>", "VOTE1VALUE": "A<b", "VOTE2VALUE": "C"})
    page = ask(port)[1]
    assert "<title>Tea &amp; &lt;b&gt;</title>" in page
    assert "<p>A&lt;b - 0 | C - 0</p>" in page


def test_the_program_runs_on_a_bare_python_and_ends_on_sigterm(redis, tmp_path):
    """As in its container: isolated, no site packages, nothing but /tmp writable (a pyc would be written here)."""
    folder = tmp_path / "vote"
    folder.mkdir()
    for name in ("front.py", "resp.py"):
        shutil.copy(FOLDER / name, folder)
    port = free_port()
    environ = {"PATH": os.environ["PATH"], **at(redis)}
    command = [sys.executable, "-IS", str(folder / "front.py"), "--port", str(port)]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        assert line == f"Azure Voting App on port {port}, votes at 127.0.0.1:{redis.port}\n"
        assert "Cats - 1" in ask(port, "vote=Cats")[1]
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert time.monotonic() - began < 2
    assert sorted(path.name for path in folder.iterdir()) == ["front.py", "resp.py"]


def test_a_port_that_is_taken_is_one_line(vote, capsys):
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))
        holder.listen()
        assert vote.main(["--port", str(holder.getsockname()[1])]) == 1
    assert "cannot serve: [Errno 98] Address already in use" in capsys.readouterr().err


def test_the_manifest_names_the_articles_objects():
    yaml = pytest.importorskip("yaml")
    text = (FOLDER / "vote.yaml").read_text()
    objects = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in yaml.safe_load_all(text)}
    front = objects["Service", "azure-vote-front"]
    assert (front["type"], front["ports"]) == ("NodePort", [{"port": 80, "nodePort": 30450}])
    assert objects["Service", "azure-vote-back"]["ports"] == [{"port": 6379}]
    for name, replicas in (("azure-vote-front", 2), ("azure-vote-back", 1)):
        deployment, service = objects["Deployment", name], objects["Service", name]
        assert deployment["replicas"] == replicas
        assert (
            deployment["template"]["metadata"]["labels"] == service["selector"] == deployment["selector"]["matchLabels"]
        )
    container = objects["Deployment", "azure-vote-front"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["@PYTHON@", "-IS", "@DIR@/front.py"]
    assert all(
        isinstance(word, str)
        for word in objects["Deployment", "azure-vote-back"]["template"]["spec"]["containers"][0]["command"]
    )
