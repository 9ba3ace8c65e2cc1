#!/usr/bin/env bash
# Builds Reprise against the PyTorch of this machine, runs the device suite and the GPU benchmark, and writes
# Markdown and JSON into results/. Nothing is downloaded or installed, and nothing outside this folder changes.
#
#   run.sh [--device DEVICE] [--quick] [--minutes N] [--only build|suite|bench]... [--jobs N] [-- MORE]
#
#   --device   cuda, cuda:1, cpu (default: cuda). On cpu the figures of a GPU are missing, and the pages say so.
#   --quick    small models and few rows, to see that everything works
#   --minutes  the benchmark starts no further row after so many minutes (default: no limit)
#   --only     this part alone; may be given several times. The suite and the benchmark need a build.
#   --jobs     compile jobs (default: one a core, and no more than one for 2 GiB of free memory)
#   -- MORE    options of the benchmark, as in -- --networks gpt --precisions bfloat16 (bench/python/gpu.py --help)
#
# PYTHON names the Python that has PyTorch (default: python3), CXX the compiler (default: g++).
set -euo pipefail
kit=$(cd "$(dirname "$0")" && pwd)

device=cuda quick=0 minutes= parts= jobs=
fail() { printf 'run.sh: %s\n' "$@" >&2; exit 1; }
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$kit/run.sh"; }
value() { [ $# -ge 2 ] || fail "$1 needs a value; run.sh --help shows all options."; }
while [ $# -gt 0 ]; do
  case "$1" in
    --device) value "$@"; device=$2; shift 2 ;;
    --quick) quick=1; shift ;;
    --minutes) value "$@"; minutes=$2; shift 2 ;;
    --only) value "$@"; parts="$parts $2"; shift 2 ;;
    --jobs) value "$@"; jobs=$2; shift 2 ;;
    --) shift; break ;;
    -h | --help) usage; exit 0 ;;
    *) fail "there is no option $1; run.sh --help shows all options." ;;
  esac
done
for part in $parts; do
  case "$part" in build | suite | bench) ;; *) fail "--only takes build, suite or bench, not $part." ;; esac
done
wanted() { [ -z "$parts" ] || [[ " $parts " == *" $1 "* ]]; }

# --- What is there ------------------------------------------------------------------------------------
python=$(command -v "${PYTHON:-python3}") || fail "there is no ${PYTHON:-python3}; name a Python in PYTHON."
python=$("$python" -c 'import sys; print(sys.executable)')
about=$("$python" - <<'END'
import sys, sysconfig, os
try:
    import torch
except ImportError as error:
    sys.exit(f"run.sh: {sys.executable} has no PyTorch ({error}); name another Python in PYTHON.")
if tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2]) < (2, 11):
    sys.exit(f"run.sh: PyTorch {torch.__version__} is too old; Reprise needs 2.11 or newer.")
header = os.path.join(sysconfig.get_path("include"), "Python.h")
if not os.path.exists(header):
    sys.exit(f"run.sh: {sys.executable} has no headers: there is no {header}. Install its -dev package, or "
             "name another Python in PYTHON.")
print(torch.__version__)
print(os.path.dirname(torch.__file__))
print(torch.version.cuda or "none")
print(torch.cuda.is_available())
END
) || exit 1
{ read -r torch_version; read -r torch; read -r cuda; read -r has_gpu; } <<<"$about"
echo "PyTorch $torch_version (CUDA: $cuda) of $python"
# A build needs no GPU, so that it can be made beside the machine that has one.
if [[ "$device" == cuda* && "$has_gpu" != True ]] && { wanted suite || wanted bench; }; then
  fail "PyTorch $torch_version sees no GPU (CUDA: $cuda). run.sh --device cpu runs without one, and" \
       "run.sh --only build builds without one."
fi
[ "$(uname -m)" = "$(sed -n 's/.*"architecture": "\(.*\)".*/\1/p' "$kit/kit.json")" ] ||
  fail "this machine is $(uname -m), and the kit's libnettle.a is not: pack the kit on a machine of this kind."

results=$kit/results work=$kit/work/$torch_version
build=$work/build
mkdir -p "$results" "$work"

# --- Build --------------------------------------------------------------------------------------------
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }
cmake_version() { "$1" --version 2>/dev/null | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p'; }
# Also programs that pip has put beside this Python.
PATH=$PATH:$(dirname "$python")

find_cmake() {
  local wheel
  cmake=$(command -v cmake || true)
  if [ -n "$cmake" ] && at_least "$(cmake_version "$cmake")" 3.25; then return 0; fi
  cmake=$kit/work/tools/cmake/data/bin/cmake
  if [ ! -x "$cmake" ]; then
    compgen -G "$kit/deps/wheels/cmake-*.whl" >/dev/null ||
      fail "the build needs CMake 3.25 or newer, and there is none on PATH. Pack the kit with CMake in it:" \
           "  scripts/gpu_kit/pack.py --with-cmake build/gpu-kit"
    for wheel in "$kit"/deps/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$kit/work/tools"; done
    find "$kit/work/tools" -type f '(' -name cmake -o -name ninja ')' -exec chmod +x {} +
  fi
  [ -n "$(cmake_version "$cmake")" ] || fail "the kit's CMake does not run on this machine: $cmake"
  PATH=$PATH:$(dirname "$(find "$kit/work/tools" -type f -name ninja -print -quit)")
}

compile() {
  local generator=()
  find_cmake
  command -v "${CXX:-g++}" >/dev/null || fail "there is no C++ compiler ${CXX:-g++}; name one in CXX."
  if command -v ninja >/dev/null; then
    generator=(-G Ninja)
  elif ! command -v make >/dev/null; then
    fail "the build needs ninja or make, and neither is on PATH."
  fi
  [ -n "$jobs" ] || jobs=$(awk -v cores="$(nproc)" '/^MemAvailable:/ {jobs = int($2 / 2097152)}
    END {if (jobs > cores) jobs = cores; print (jobs < 1 ? 1 : jobs)}' /proc/meminfo)
  echo "Building with $jobs jobs; the log is results/build.log"
  {
    "$cmake" -S "$kit/source" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DREPRISE_UNITY=ON \
      -DREPRISE_BUILD_RUNTIME=ON -DREPRISE_BUILD_PYTHON=ON -DREPRISE_BUILD_CLI=OFF -DREPRISE_BUILD_TESTS=OFF \
      -DREPRISE_BUILD_BENCH=OFF -DREPRISE_BUILD_EXAMPLES=OFF \
      -DCMAKE_MODULE_PATH="$kit/deps/cmake" -Dpybind11_DIR="$kit/deps/pybind11/share/cmake/pybind11" \
      -DPython_EXECUTABLE="$python" -DREPRISE_TORCH_DIR="$torch" &&
    "$cmake" --build "$build" -j "$jobs" --target _core _runtime
  } >"$results/build.log" 2>&1 || {
    tail -n 30 "$results/build.log" >&2
    fail "the build failed; the whole log is $results/build.log"
  }
  if ! grep -q "^-- CUDA's headers: " "$results/build.log"; then return; fi
  "$cmake" --build "$build" -j "$jobs" --target reprise_cuda_check >"$results/cuda_check.log" 2>&1 ||
    failed="$failed cuda_check (results/cuda_check.log)"
}

# --- The parts ----------------------------------------------------------------------------------------
failed=
if wanted build; then
  SECONDS=0
  compile
  echo "built in $SECONDS s"
fi
ls "$build"/python/reprise/_runtime*.so >/dev/null 2>&1 ||
  fail "there is no build for PyTorch $torch_version yet; run.sh --only build makes one."
export PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1
if [ "$device" = cpu ]; then export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}; fi

if wanted suite; then
  if [ -x "$build/reprise_cuda_check" ] && [ "${device#cuda}" != "$device" ]; then
    "$build/reprise_cuda_check" 2>&1 | tee "$results/cuda_check.txt" || failed="$failed cuda_check"
  fi
  few=()
  if [ "$quick" = 1 ]; then few=(--modes chain graph --models dense "attention, bfloat16"); fi
  "$python" "$kit/source/tests/device/suite.py" --device "$device" -o "$results" "${few[@]}" ||
    failed="$failed suite"
fi
if wanted bench; then
  arguments=(--device "$device" -o "$results")
  if [ "$quick" = 1 ]; then arguments+=(--quick); fi
  if [ -n "$minutes" ]; then arguments+=(--minutes "$minutes"); fi
  "$python" "$kit/source/bench/python/gpu.py" "${arguments[@]}" "$@" || failed="$failed bench"
fi

if [ "$device" = cpu ]; then
  echo "This was a run on the CPU. Figures of a GPU are MISSING: run this kit on a machine with a GPU."
fi
echo "The results are in $results"
[ -z "$failed" ] || fail "these parts failed:$failed"
