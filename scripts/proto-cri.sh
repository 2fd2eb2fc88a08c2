#!/bin/sh
# Regenerate the Python module of the CRI description (src/podwire/criapi/api.proto).
# The result is committed, so that an installation needs no compiler; a unit test compares the two.
# Usage: scripts/proto-cri.sh [OUTPUT_DIRECTORY]      (default: src, next to the .proto file)
set -eu
cd "$(dirname "$0")/.."
out=${1:-src}
python=${PYTHON:-.venv/bin/python}
exec "$python" -m grpc_tools.protoc --proto_path=src --python_out="$out" --pyi_out="$out" src/podwire/criapi/api.proto
