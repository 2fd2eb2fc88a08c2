"""Pack recordings of the real kube-proxy into golden.json.gz: python pack.py FOLDER (one folder a case, see README.md).

The file is {case: {config, node, interfaces, states: [{objects, iptables, ip6tables, nft, packets}], …}}: `states` are the first
state and those after each step. Objects lose what kube-proxy does not read.
"""

import gzip
import json
import os
import sys

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))


def text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def loaded(path):
    return json.loads(text(path)) if os.path.exists(path) else None


def slim(value):
    kept = {"kind": value["kind"], "metadata": value["metadata"]}
    if value["kind"] == "Node":
        kept["spec"] = value.get("spec", {})
        kept["status"] = {"addresses": value.get("status", {}).get("addresses", [])}
    elif value["kind"] in ("Service", "EndpointSlice", "ServiceCIDR"):
        kept.update({key: part for key, part in value.items() if key != "apiVersion"})
    else:
        return None
    return kept


def state(folder):
    documents = yaml.load_all(text(f"{folder}/objects.yaml"), Loader=yaml.CSafeLoader)
    return {
        "objects": [kept for value in documents if (kept := slim(value)) is not None],
        "iptables": text(f"{folder}/iptables-save.txt"),
        "ip6tables": text(f"{folder}/ip6tables-save.txt"),
        "nft": text(f"{folder}/nft.txt"),
        "packets": [
            {key: part for key, part in packet.items() if key != "verified_in_kernel"}
            for packet in loaded(f"{folder}/packets.json") or []
        ],
    }


def case(folder):
    scenario = loaded(f"{folder}/scenario.json")
    if scenario is None or "kubeProxyConfig" not in scenario:
        return {
            "objects": [
                kept
                for value in yaml.load_all(text(f"{folder}/objects.yaml"), Loader=yaml.CSafeLoader)
                if (kept := slim(value)) is not None
            ],
            "texts": {name: text(f"{folder}/{name}") for name in sorted(os.listdir(folder)) if name.endswith(".txt")},
            "node": (scenario or {}).get("node", ""),
            "conntrack": loaded(f"{folder}/conntrack.json"),
        }
    steps = sorted(name for name in os.listdir(folder) if name.startswith("step"))
    return {
        "title": scenario["title"],
        "config": scenario["kubeProxyConfig"]["iptables"],
        "node": scenario["node"],
        "interfaces": scenario["nodeInterfaces"],
        "routes": scenario["routes"],
        "route_localnet": scenario["route_localnet_after_start"],
        "states": [state(folder), *[state(f"{folder}/{step}") for step in steps]],
        "healthcheck": (loaded(f"{folder}/healthcheck.json") or {}).get("iptables"),
    }


def main(source):
    cases = {name: case(f"{source}/{name}") for name in sorted(os.listdir(source)) if os.path.isdir(f"{source}/{name}")}
    with gzip.GzipFile(f"{HERE}/golden.json.gz", "wb", 9, mtime=0) as file:
        file.write(json.dumps(cases, separators=(",", ":"), sort_keys=True).encode())
    print(len(cases), "cases")


if __name__ == "__main__":
    main(sys.argv[1])
