#!/bin/sh
# Regenerate the Python modules of the API server's protobuf descriptions (src/podwire/apiserver/*.proto).
# The result is committed, so that an installation needs no compiler; a unit test compares the two.
# Usage: scripts/proto.sh [OUTPUT_DIRECTORY]      (default: src, next to the .proto files)
set -eu
cd "$(dirname "$0")/.."
out=${1:-src}
python=${PYTHON:-.venv/bin/python}
exec "$python" -m grpc_tools.protoc --proto_path=src --python_out="$out" src/podwire/apiserver/*.proto
