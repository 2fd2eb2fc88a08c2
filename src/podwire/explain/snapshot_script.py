"""The same bundle by a POSIX shell script, for nodes without Python.

It is written from the table of parts that podwire itself works through, so the two cannot drift apart. The script needs sh, tar, sed and
whatever of the read programs the node has; it changes nothing and leaves nothing but the bundle. Secrets are handled as podwire handles them: of
the API's pods it takes a table of names and addresses, no specifications.
"""

from __future__ import annotations

import shlex

from podwire.explain import snapshot_parts as parts

_HEAD = """#!/bin/sh
# Written by podwire collect --print-script: reads a node's network state into a .tar.gz bundle. Changes nothing.
# Use: sh collect.sh [BUNDLE.tar.gz] [KUBECONFIG]
set -u
umask 077
PATH=$PATH:/usr/sbin:/sbin:/usr/local/sbin
LC_ALL=C
export PATH LC_ALL
node=$(uname -n)
out=${1:-podwire-$node.tar.gz}
kubeconfig=${2:-}
work=$(mktemp -d "${TMPDIR:-/tmp}/podwire.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
top=$work/podwire-bundle
mkdir -p "$top/host" "$top/rules" "$top/net" "$top/cni/lib" "$top/flannel" "$top/runtime" "$top/kube" "$top/logs"
listed=$work/listed

quote() { printf '%s' "$1" | tr '\\n\\t' '  ' | sed 's/[\\\\"]/\\\\&/g'; }
have() { printf '{"file": "%s", "read": "%s"},\\n' "$1" "$(quote "$2")" >> "$listed"; }
lack() { printf '{"file": "%s", "unread": "%s"},\\n' "$1" "$(quote "$2")" >> "$listed"; rm -f "$top/$1"; }

# run FILE PROGRAM ARGUMENTS...: keep what the program says.
run() {
  file=$1; shift
  if ! command -v "$1" > /dev/null 2>&1; then lack "$file" "$1 is not installed"; return; fi
  if "$@" > "$top/$file" 2> "$work/said" < /dev/null; then have "$file" "$*"
  else lack "$file" "$*: exit status $?: $(tail -n 1 "$work/said")"; fi
}
# run_if PATH FILE PROGRAM...: only where PATH has something in it.
run_if() {
  path=$1; shift
  if [ -n "$(head -c 1 "$path" 2> /dev/null)" ]; then run "$@"
  else lack "$1" "nothing to read: $path is empty or not there"; fi
}
# copy FILE PATH
copy() { if cat "$2" > "$top/$1" 2> /dev/null; then have "$1" "$2"; else lack "$1" "$2: cannot be read"; fi; }
# tree FOLDER/ PATH: plain files only; links are followed, as their readers do.
tree() {
  if [ ! -d "$2" ]; then lack "$1" "$2: No such file or directory"; return; fi
  mkdir -p "$top/$1"
  (cd "$2" && find -L . -type f -size -2049 | head -n 20000) | while IFS= read -r name; do
    mkdir -p "$top/$1$(dirname "$name")"
    cat "$2/$name" > "$top/$1${name#./}" 2> /dev/null || rm -f "$top/$1${name#./}"
  done
  have "$1" "$2"
}
"""

_TAIL = """
{
  printf '{"format": "podwire bundle 1", "node": "%s", "collected": "%s", "by": "shell script", "notes": [], "parts": [\\n' \\
    "$(quote "$node")" "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
  sed '$s/,$//' "$listed"
  printf ']}\\n'
} > "$top/manifest.json"
(cd "$work" && tar cf - podwire-bundle) | gzip > "$out" || exit 2
echo "$out"
"""


def script() -> str:
    """The script's text."""
    lines = [_HEAD]
    for command in parts.COMMANDS:
        words = " ".join(map(shlex.quote, (command.file, *command.argv)))
        lines.append(f"run_if {shlex.quote(command.only_if)} {words}" if command.only_if else f"run {words}")
    lines += [f"copy {shlex.quote(copy.file)} {shlex.quote(copy.path)}" for copy in parts.COPIES]
    lines += [f"tree {shlex.quote(tree.file)} {shlex.quote(tree.path)}" for tree in parts.TREES]
    lines += [_sysctls(), _binaries(), _processes(), _inotify(), _namespaces(), _logs(), _kube(), _TAIL]
    return "\n".join(lines)


def _sysctls() -> str:
    patterns = " ".join(f"/proc/sys/{pattern}" for pattern in parts.SYSCTLS)
    return f"""
for path in {patterns}; do
  if [ -r "$path" ]; then printf '%s = %s\\n' "${{path#/proc/sys/}}" "$(cat "$path" 2> /dev/null)"
  elif [ ! -e "$path" ]; then echo "sysctl: cannot stat $path: No such file or directory"; fi
done > "$top/{parts.SYSCTL_FILE}"
have {parts.SYSCTL_FILE} /proc/sys"""


def _binaries() -> str:
    return f"""
if [ -d {parts.BINARIES_PATH} ]; then
  {{ ls -ln {parts.BINARIES_PATH}; echo "dangling: those named below"
    for path in {parts.BINARIES_PATH}/*; do
      if [ -L "$path" ] && [ ! -e "$path" ]; then echo "${{path##*/}}: dangling"; fi
    done; }} > "$top/{parts.BINARIES_FILE}"
  have {parts.BINARIES_FILE} "ls -l {parts.BINARIES_PATH}"
else lack {parts.BINARIES_FILE} "{parts.BINARIES_PATH}: No such file or directory"; fi"""


def _processes() -> str:
    names = "|".join(parts.PROCESSES)
    return f"""
set -f   # no word of a command line is a pattern
for pid in $(set +f; cd /proc && echo [0-9]*); do
  path=/proc/$pid/cmdline
  words=$(cat "$path" 2> /dev/null | tr '\\0' ' ')
  count=0
  for word in $words; do
    count=$((count + 1)); [ "$count" -le 5 ] || break
    case "${{word##*/}}" in
      {names})
        printf 'pid %s: %s\\n' "$pid" "${{word##*/}} ${{words#*"$word"}}" |
          sed -E 's/((token|password|secret)[a-z-]*[= ])[^ ]+/\\1.../g; s/  */ /g'
        break ;;
    esac
  done
done > "$top/{parts.PROCESSES_FILE}"
set +f
have {parts.PROCESSES_FILE} "/proc/*/cmdline\""""


def _inotify() -> str:
    return f"""
for path in /proc/[0-9]*/fdinfo/*; do
  pid=${{path#/proc/}}; pid=${{pid%%/*}}
  case "$(cat "/proc/$pid/comm" 2> /dev/null)" in
    containerd|crio|dockerd) grep '^inotify ' "$path" 2> /dev/null ;;
  esac
done > "$top/{parts.INOTIFY_FILE}"
have {parts.INOTIFY_FILE} "/proc/*/fdinfo\""""


def _namespaces() -> str:
    # Built from plain `ip` output: the fields are few and none of them can hold a quote.
    return f"""
if command -v nsenter > /dev/null 2>&1 && command -v ip > /dev/null 2>&1; then
  seen=" $(readlink /proc/self/ns/net) "
  {{ printf '['; first=1
    for path in /proc/[0-9]*/ns/net; do
      space=$(readlink "$path" 2> /dev/null) || continue
      case "$seen" in *" $space "*) continue ;; esac
      seen="$seen$space "
      links=$(nsenter --net="$path" ip -o link show 2> /dev/null | sed -nE \
        's/^([0-9]+): ([^:@]+)(@if([0-9]+))?[^:]*: .* mtu ([0-9]+) .*link\\/[a-z]+ ([0-9a-f:]+).*/\\1 \\2 \\5 \\6 \\4/p') || continue
      [ "$first" = 1 ] || printf ','
      first=0; id=${{space#net:[}}; comma=
      printf '{{"netns": "%s", "process": "", "links": [' "${{id%]}}"
      printf '%s\n' "$links" | {{ while read -r index name mtu mac peer; do
        [ -n "$index" ] || continue
        list=$(nsenter --net="$path" ip -o addr show dev "$name" 2> /dev/null | sed -nE 's/.* inet6? ([0-9a-f.:]+)\\/.*/"\\1"/p' | paste -s -d , -)
        printf '%s{{"ifname": "%s", "ifindex": %s, "link_index": %s, "mtu": %s, "address": "%s", "addresses": [%s]}}' \
          "$comma" "$name" "$index" "${{peer:-0}}" "$mtu" "$mac" "$list"
        comma=,
      done; }}
      printf ']}}'
    done; printf ']\n'; }} > "$top/{parts.NAMESPACES_FILE}"
  have {parts.NAMESPACES_FILE} "ip link and ip addr in /proc/*/ns/net"
else lack {parts.NAMESPACES_FILE} "nsenter or ip is not installed"; fi"""


def _logs() -> str:
    return f"""
if dmesg > "$work/dmesg" 2> /dev/null; then
  grep -E '{parts.KERNEL_LOG}' "$work/dmesg" | tail -n 2000 > "$top/{parts.KERNEL_LOG_FILE}"
  have {parts.KERNEL_LOG_FILE} dmesg
else lack {parts.KERNEL_LOG_FILE} "dmesg: not permitted"; fi
for path in /var/log/pods/*flannel*/*/*.log /var/log/pods/*kube-proxy*/*/*.log; do
  [ -f "$path" ] || continue
  folder=${{path#/var/log/pods/}}
  name=logs/${{folder%%/*}}-${{path##*/}}
  tail -c 131072 "$path" > "$top/$name" && have "$name" "$path"
done"""


def _kube() -> str:
    columns = (
        "NAMESPACE:.metadata.namespace,NAME:.metadata.name,IP:.status.podIP,NODE:.spec.nodeName,STATUS:.status.phase,"
        "HOSTNETWORK:.spec.hostNetwork"
    )
    lines = ["", 'if [ -n "$kubeconfig" ]; then']
    for file, _, words in parts.KUBE:
        asked = " ".join(words)
        if words[0] == "pods":
            lines.append(
                f'  run kube/pods.txt kubectl --kubeconfig "$kubeconfig" get {asked} -o custom-columns={columns}'
            )
        else:
            lines.append(f'  run {file} kubectl --kubeconfig "$kubeconfig" get {asked} -o json')
    lines.append("else")
    lines += [f"  lack {file} 'no kubeconfig was given'" for file, _, _ in parts.KUBE]
    lines.append("fi")
    return "\n".join(lines)
