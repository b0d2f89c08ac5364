#!/usr/bin/env bash
# Finds or makes the Python environment (.venv beside this file), then runs `python -m grpo "$@"` where you are.
# GRPO_PYTHON=/path/to/python uses that one instead. All settings are read in Python. `--setup SET...` is for the
# Makefile: it installs requirements/SET.txt as well and prints the path of the Python. verl has an environment of its own,
# .venv-verl-cuda or .venv-verl-cpu, which `./train.sh setup --engine verl` makes; GRPO_VERL_PYTHON names another.
set -euo pipefail
die() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

self="${BASH_SOURCE[0]}"
while [ -L "$self" ]; do # macOS has no `readlink -f`
  target="$(readlink "$self")"
  case "$target" in /*) self="$target" ;; *) self="$(dirname "$self")/$target" ;; esac
done
repo="$(CDPATH='' cd "$(dirname "$self")" && pwd -P)"

find_python() { # Each is run: a pyenv shim may stand for a Python that is not there. 3.11 has the most wheels.
  local candidate no_venv=""
  while IFS= read -r candidate; do
    "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null || continue
    "$candidate" -c 'import ensurepip, venv' 2>/dev/null && printf '%s' "$candidate" && return
    no_venv="$candidate"
  done < <(
    type -ap python3.11 python3.12 python3.10 python3 python
    ls -d "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.1[0-2].*/bin/python 2>/dev/null
  )
  [ -z "$no_venv" ] || die "$no_venv has no venv module (Debian, Ubuntu: apt install python3-venv); or set GRPO_PYTHON"
  die "no Python 3.10, 3.11 or 3.12 found; install one (https://www.python.org) or set GRPO_PYTHON=/path/to/python"
}

sets=(embedded)
[ "${1:-}" != --setup ] || sets+=("${@:2}")
if [ -n "${GRPO_PYTHON:-}" ]; then
  python="$(command -v "$GRPO_PYTHON")" || die "GRPO_PYTHON=$GRPO_PYTHON: there is no such program"
  lacks="$("$python" "$repo/requirements/install.py" --lacks 2>/dev/null)" || die "GRPO_PYTHON=$GRPO_PYTHON does not run"
  [ -z "$lacks" ] || die "GRPO_PYTHON=$python lacks $lacks; try: $python -m pip install -r '$repo/requirements/embedded.txt'"
else
  python="$repo/.venv/bin/python"
  for name in "${sets[@]}"; do # an installed set leaves a copy of its file
    case "$name" in verl-cpu | verl-cuda) venv="$repo/.venv-$name" ;; *) venv="$repo/.venv" ;; esac
    if ! [ -x "$venv/bin/python" ] || ! cmp -s "$repo/requirements/$name.txt" "$venv/.installed-$name"; then
      found="$(find_python)"
      "$found" "$repo/requirements/install.py" "${sets[@]}" || exit
      break
    fi
  done
fi
if [ "${1:-}" = --setup ]; then
  printf '%s\n' "$python"
  exit
fi
export PYTHONPATH="$repo${PYTHONPATH:+:$PYTHONPATH}"
# This is `python -m grpo`, but never takes a module from the folder you are in for one of ours (-P is not in 3.10).
exec "$python" -c 'import runpy, sys
sys.path[0] = sys.argv.pop(1)
runpy.run_module("grpo", run_name="__main__", alter_sys=True)' "$repo" "$@"
