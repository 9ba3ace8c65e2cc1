#!/usr/bin/env bash
# Compiles and links the runtime, and tests/cuda, against a build of PyTorch for CUDA. It needs no GPU and no
# CUDA toolkit, and nothing that it builds is run. The packages of requirements-cuda.txt go into .venv-cuda
# (550 MB to download, 1.2 GB on the disk), the build into build/cuda-check.
#
#   JOBS         compile jobs (1 by default)
#   TORCH_INDEX  one more package index in which pip looks for torch
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-cuda build=build/cuda-check
fail() { printf 'cuda-check: %s\n' "$@" >&2; exit 1; }

python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
if ! cmp -s requirements-cuda.txt $venv/installed.txt; then
  echo "Installing the packages that requirements-cuda.txt names into $venv (550 MB)"
  [ -x $venv/bin/python ] || "$python" -m venv $venv ||
    fail "$python cannot make an environment. On Debian: apt-get install python3-venv"
  PIP_NO_INPUT=1 $venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
    ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -r requirements-cuda.txt ||
    fail "pip could not install the packages of requirements-cuda.txt (see above)." \
         "PyPI has them for Linux on x86-64; a package index of yours may lack them."
  cp requirements-cuda.txt $venv/installed.txt
fi

packages=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
torch=$packages/torch
headers=$(dirname "$(find "$packages/nvidia" -name cuda_runtime_api.h -print -quit 2>/dev/null)")
[ -f "$torch/lib/libtorch_cuda.so" ] ||
  fail "$torch is no build for CUDA: it has no lib/libtorch_cuda.so. Name an index that has one in TORCH_INDEX."
[ -f "$headers/cuda_runtime_api.h" ] ||
  fail "$packages/nvidia has no cuda_runtime_api.h. Remove $venv and run this again."

cmake --preset demo -B $build -DREPRISE_BUILD_CLI=OFF -DREPRISE_BUILD_RUNTIME=ON \
  -DREPRISE_TORCH_DIR="$torch" -DREPRISE_CUDA_HEADERS="$headers"
cmake --build $build -j "${JOBS:-1}"
[ -x $build/reprise_cuda_check ] || fail "the build passed, and $build/reprise_cuda_check is not there."
echo "make cuda-check: compiled and linked against PyTorch $(sed -n "s/^__version__ = '\(.*\)'/\1/p" \
"$torch/version.py"); nothing was run on a GPU"
