#!/bin/sh
# Prints the folder that CMake has to search for LibTorch (the one that holds Torch/TorchConfig.cmake):
# that of REPRISE_TORCH_DIR if it is set, otherwise that of the torch package in .venv.
set -eu
cd "$(dirname "$0")/.."

if [ -n "${REPRISE_TORCH_DIR:-}" ]; then
  for folder in "$REPRISE_TORCH_DIR/share/cmake" "$REPRISE_TORCH_DIR" "$REPRISE_TORCH_DIR/.."; do
    if [ -f "$folder/Torch/TorchConfig.cmake" ]; then
      (cd "$folder" && pwd)
      exit 0
    fi
  done
  echo "REPRISE_TORCH_DIR=$REPRISE_TORCH_DIR holds no share/cmake/Torch/TorchConfig.cmake." >&2
  exit 1
fi

for folder in .venv/lib/python3*/site-packages/torch/share/cmake; do
  if [ -f "$folder/Torch/TorchConfig.cmake" ]; then
    (cd "$folder" && pwd)
    exit 0
  fi
done
echo "There is no LibTorch in .venv. Run scripts/setup.sh first, or set REPRISE_TORCH_DIR." >&2
exit 1
