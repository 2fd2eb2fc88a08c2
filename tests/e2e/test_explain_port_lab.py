"""The question of a NodePort that somebody took, asked of a real node: explain's answers are what real clients get."""

import json
import re
import time

import pytest

pytestmark = pytest.mark.e2e

NODE = "node-1"
SERVER = (
    "import http.server\n"
    "class H(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers(); self.wfile.write(b'the squatter')\n"
    "    def log_message(self, *a): pass\n"
    "http.server.HTTPServer(('0.0.0.0', {port}), H).serve_forever()\n"
)


@pytest.fixture(scope="module")
def nodeport(lab):
    """A Service with a NodePort, with its endpoints in the rules of the node."""
    lab.kubectl("create", "deployment", "explained", "--image=web", "--port=80", "--replicas=2")
    lab.kubectl("expose", "deployment", "explained", "--type=NodePort")
    lab.kubectl("rollout", "status", "deployment", "explained", "--timeout=30s")
    port = int(lab.kubectl("get", "service", "explained", "-o", "jsonpath={.spec.ports[0].nodePort}"))
    until(lambda: len(service(lab)["backends"]) == 2 and all(one["in_rules"] for one in service(lab)["backends"]))
    yield port
    lab.kubectl("delete", "service,deployment", "explained")


def until(holds, seconds=20):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.5)


def service(lab):
    return json.loads(lab.podwire("explain", "service", "default/explained", "--node", NODE, "--json").stdout)


def port_of(lab, port):
    (made,) = json.loads(lab.podwire("explain", "port", f"{port}/tcp", "--node", NODE, "--json").stdout)
    return made


def endpoints(lab):
    found = lab.kubectl("get", "endpointslices", "-l", "kubernetes.io/service-name=explained", "-o", "json")
    return {f"{one['addresses'][0]}:80" for item in json.loads(found)["items"] for one in item["endpoints"]}


def targets(client):
    return {one["to"] for one in client["outcomes"] if one["verdict"] == "dnat"}


def get(lab, node, url):
    return lab.on(node, "curl", "-s", "-m", "5", url, check=False)


def test_a_service_is_told_as_the_api_has_it_and_as_the_rules_do_it(lab, nodeport):
    made = service(lab)
    assert made["type"] == "NodePort"
    assert made["differences"] == []
    assert {f"{one['address']}:{one['port']}" for one in made["backends"]} == endpoints(lab)
    front = next(one for one in made["frontends"] if one["kind"] == "nodePort")
    assert front["port"] == nodeport
    assert targets(front["clients"][0]) == endpoints(lab)


def test_the_rules_win_over_whoever_takes_the_port_when_kube_proxy_is_dead(lab, nodeport):
    before = port_of(lab, nodeport)
    assert before["services"] == ["default/explained"]
    assert any(one["process"] == "kube-proxy" for one in before["listeners"])
    assert {client["who"] for client in before["clients"] if targets(client) == endpoints(lab)} >= {"external", "node"}

    lab.podwire("node", "stop", NODE, "kube-proxy")
    try:
        script = SERVER.format(port=nodeport)
        lab.on(NODE, "sh", "-c", f'exec python3 -c "{script}" </dev/null >/dev/null 2>&1 & echo $! >/run/squatter.pid')
        until(lambda: [one for one in port_of(lab, nodeport)["listeners"] if one["process"] != "kube-proxy"])
        after = port_of(lab, nodeport)
        assert re.search(r"python3[\d.]* \(pid \d+\) listens on it and gets none of them", after["answer"])
        assert [targets(one) for one in after["clients"]] == [targets(one) for one in before["clients"]]
        address = after["address"]
        for node in (NODE, "node-2"):
            said = get(lab, node, f"http://{address}:{nodeport}/")
            assert said
            assert "squatter" not in said
        assert ("squatter" in get(lab, NODE, f"http://127.0.0.1:{nodeport}/")) == (not targets(after["clients"][2]))
    finally:
        lab.on(NODE, "sh", "-c", "kill $(cat /run/squatter.pid)", check=False)
        lab.podwire("node", "start", NODE, "kube-proxy")


def test_the_whole_ruleset_of_a_node_is_one_tree_and_one_page(lab, nodeport, tmp_path):
    text = lab.podwire("explain", "rules", "--node", NODE).stdout
    assert "default/explained/tcp, iptables-nft" in text
    assert f"NodePort {nodeport}" in text
    page = tmp_path / "rules.html"
    lab.podwire("explain", "rules", "--node", NODE, "--html", str(page))
    assert "default/explained" in page.read_text()
