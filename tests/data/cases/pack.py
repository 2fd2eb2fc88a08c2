"""Pack situations that people reported into cases.json.gz: python pack.py FOLDER (one folder a case).

The file is {case: {path: text}}. What a kernel or a person answered is not in it: the answers are in the tests.
"""

import gzip
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ANSWERS = frozenset({"expect.md", "kernel-check.txt", "plugin-check.txt"})


def files(folder):
    found = {}
    for root, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            path = os.path.join(root, name)
            if name not in ANSWERS and not os.path.islink(path):
                with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
                    found[os.path.relpath(path, folder)] = file.read()
    return found


def main(source):
    cases = {
        name: files(f"{source}/{name}") for name in sorted(os.listdir(source)) if os.path.isdir(f"{source}/{name}")
    }
    with gzip.GzipFile(f"{HERE}/cases.json.gz", "wb", 9, mtime=0) as file:
        file.write(json.dumps(cases, separators=(",", ":"), sort_keys=True).encode())
    print(len(cases), "cases")


if __name__ == "__main__":
    main(sys.argv[1])
