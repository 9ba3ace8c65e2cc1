#!/bin/sh
# Prints the folder of LibTorch, the one that has include and lib, for CMAKE_PREFIX_PATH. With
# REPRISE_TORCH_VERSION=2.14.1 it is the package torch in .venv-2.14.1, with REPRISE_TORCH_DIR it is that folder,
# otherwise it is the package torch in .venv.
set -eu
cd "$(dirname "$0")/.."

if [ -n "${REPRISE_TORCH_VERSION:-}" ]; then unset REPRISE_TORCH_DIR; fi
venv=.venv${REPRISE_TORCH_VERSION:+-$REPRISE_TORCH_VERSION}

is_torch() { [ -f "$1/lib/libtorch.so" ] && [ -d "$1/include/torch" ]; }

if [ -n "${REPRISE_TORCH_DIR:-}" ]; then
  for folder in "$REPRISE_TORCH_DIR" "${REPRISE_TORCH_DIR%/share/cmake*}"; do
    if is_torch "$folder"; then
      (cd "$folder" && pwd)
      exit 0
    fi
  done
  echo "REPRISE_TORCH_DIR=$REPRISE_TORCH_DIR holds no include/torch and lib/libtorch.so." >&2
  exit 1
fi

for folder in "$venv"/lib/python3*/site-packages/torch; do
  if is_torch "$folder"; then
    (cd "$folder" && pwd)
    exit 0
  fi
done
echo "There is no LibTorch in $venv. Run scripts/setup.sh first, or set REPRISE_TORCH_DIR." >&2
exit 1
