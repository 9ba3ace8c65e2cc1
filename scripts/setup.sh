#!/usr/bin/env bash
# Prepares this machine to build and run Reprise, and says what it does and why:
#
#   1. system packages: compiler, CMake, small C++ libraries, the Fashion-MNIST data.
#      With apt-get, the missing ones are installed (as root, or through sudo). Elsewhere their names
#      are printed and you install them.
#   2. LibTorch: a Python environment in .venv with the torch package that requirements.txt names.
#      Nothing outside .venv is touched.
#   3. More Python packages in .venv: those that the Python package is built and tested with
#      (requirements-python.txt), and SciPy, with whose solver a test compares plans (requirements-test.txt).
#      Without them everything else is built and tested.
#
# Safe to run again: what is there already is left alone, and then no root is needed. With --quiet
# nothing is printed unless something has to be done. With --clang only Clang is looked after, which `make
# fuzz` and `make packaging` need and nothing else does. With --demo only what the two programs need is looked after:
# no libraries of tests and benchmarks, and step 3 is left out.
#
#   REPRISE_TORCH_DIR      use this LibTorch, the folder with include and lib, and make no .venv
#   REPRISE_TORCH_VERSION  use this version of torch, 2.14.1 in .venv-2.14.1; REPRISE_TORCH_DIR is then ignored
#   REPRISE_TORCH_INDEX    one more package index in which pip looks for torch
#   REPRISE_PYTHON         the python3 to make .venv with (otherwise the first one that fits)
set -euo pipefail
cd "$(dirname "$0")/.."

quiet=0 clang=0 demo=0
for argument in "$@"; do
  case "$argument" in
    --quiet) quiet=1 ;;
    --clang) clang=1 ;;
    --demo) demo=1 ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "scripts/$(basename "$0")"; exit 0 ;;
    *) echo "usage: scripts/setup.sh [--quiet] [--clang | --demo]" >&2; exit 2 ;;
  esac
done

say() { printf '%s\n' "$*"; }
detail() { [ "$quiet" = 1 ] || say "$*"; }
fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }

case "${REPRISE_TORCH_VERSION:-}" in
  *[!0-9.]*) fail "REPRISE_TORCH_VERSION=$REPRISE_TORCH_VERSION is no version such as 2.14.1." ;;
  ?*) unset REPRISE_TORCH_DIR ;;
esac
venv=.venv${REPRISE_TORCH_VERSION:+-$REPRISE_TORCH_VERSION}

# --- 1. System packages -------------------------------------------------------------------------------
# Debian package | what shows that it is there | what it is for.
# "tool NAME [VERSION]" is a program, "header NAME" a C++ header, "venv" a python3 that can make
# environments, "python-header" that the python of .venv has its headers, "file NAME" a file.
needs='
g++                  | tool g++ 12                   | the compiler (C++20)
make                 | tool make                     | runs the commands of the Makefile
cmake                | tool cmake 3.25               | configures the build
ninja-build          | tool ninja                    | runs the build
ccache               | tool ccache                   | makes the second build fast
pkg-config           | tool pkg-config               | finds nettle
nlohmann-json3-dev   | header nlohmann/json.hpp      | reads and writes the files of the core
libfmt-dev           | header fmt/core.h             | formats text
libcli11-dev         | header CLI/CLI.hpp            | the command line
zlib1g-dev           | header zlib.h                 | reads compressed data sets
nettle-dev           | header nettle/sha2.h          | hashes problem files
libgtest-dev         | header gtest/gtest.h          | tests
librapidcheck-dev    | header rapidcheck.h           | tests of properties on random cases
libbenchmark-dev     | header benchmark/benchmark.h  | benchmarks
python3-venv         | venv                          | makes .venv, which holds LibTorch
python3-dev          | python-header                  | builds the Python package
dataset-fashion-mnist| file /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz | real data to train on
'
if [ "$clang" = 1 ]; then
  needs='
clang-19             | tool clang++-19               | the fuzzer, and the second compiler of the packaging test
libclang-rt-19-dev   | file /usr/lib/llvm-19/lib/clang/19/lib/linux | its run-time libraries
'
fi
if [ "$demo" = 1 ]; then needs=$(grep -vE '^(ccache|libgtest|librapidcheck|libbenchmark|python3-dev) *' <<<"$needs"); fi
compiler=${CXX:-g++}  # as CMake chooses it
# Without these data, training uses synthetic data. Without these headers, the Python package is not built.
optional='dataset-fashion-mnist python3-dev'

installed() {  # takes a package: does dpkg know it as installed?
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Prints the interpreters that could make .venv, best first, one path a line.
pythons() {
  if [ -n "${REPRISE_PYTHON:-}" ]; then
    say "$REPRISE_PYTHON"
    return
  fi
  local name path seen=' '
  for name in python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10; do
    path=$(command -v "$name" 2>/dev/null) || continue
    # Asks the interpreter itself, because version managers put launchers on PATH that need not work.
    path=$("$path" -c 'import sys; print(sys.executable)' 2>/dev/null) || continue
    case "$seen" in *" $path "*) continue ;; esac
    seen="$seen$path "
    say "$path"
  done
}

can_make_venv() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

version_of() { "$1" --version 2>/dev/null | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1 || true; }
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# Takes package, kind, argument and version. Tells whether the need is met.
met() {
  local path program
  case "$2" in
    tool)
      program=$3
      if [ "$program" = g++ ]; then program=$compiler; fi
      command -v "$program" >/dev/null 2>&1 || return 1
      [ -z "$4" ] || at_least "$(version_of "$program")" "$4" ;;
    header)
      if command -v dpkg-query >/dev/null 2>&1 && installed "$1"; then return 0; fi
      printf '#if !__has_include(<%s>)\n#error missing\n#endif\n' "$3" |
        "$compiler" -std=c++20 -E -x c++ - >/dev/null 2>&1 ;;
    file) [ -e "$3" ] ;;
    python-header)
      [ -z "${REPRISE_TORCH_DIR:-}" ] || return 0
      path=$venv/bin/python
      [ -x "$path" ] || path=$(pythons | head -n 1)
      [ -e "$("$path" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ;;
    venv)
      [ -z "${REPRISE_TORCH_DIR:-}" ] || return 0
      [ ! -x $venv/bin/python ] || return 0
      while read -r path; do
        if can_make_venv "$path"; then return 0; fi
      done < <(pythons)
      return 1 ;;
  esac
}

trim() { local text=$1; text="${text#"${text%%[! ]*}"}"; printf '%s' "${text%"${text##*[! ]}"}"; }

# Fills `missing` with the packages whose need is not met and `report` with a line for each.
find_missing() {
  missing=() report=()
  local package check purpose kind argument version
  while IFS='|' read -r package check purpose; do
    package=$(trim "$package")
    [ -n "$package" ] || continue
    read -r kind argument version <<<"$check"
    if ! met "$package" "$kind" "${argument:-}" "${version:-}"; then
      missing+=("$package")
      report+=("$(printf '  %-22s %s%s' "$package" "$(trim "$purpose")" \
                         "${version:+ (version $version or newer)}")")
    fi
  done <<<"$needs"
}

is_optional() { case " $optional " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

# Splits `missing` into what must be there and what would be good to have.
required_of_missing() {
  local package
  for package in ${missing[@]+"${missing[@]}"}; do
    is_optional "$package" || say "$package"
  done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif [ -t 0 ]; then
    sudo "$@"
  else
    sudo -n "$@"
  fi
}

install_with_apt() {
  local package wanted=()
  if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null 2>&1; then
    [ -n "$(required_of_missing)" ] || { say "setup: no sudo here, going on without."; return 0; }
    fail "installing packages needs root and there is no sudo. As root, run:" \
         "  apt-get update && apt-get install ${missing[*]}" \
         "then run this again."
  fi
  say "   Installing them with apt-get$([ "$(id -u)" = 0 ] || printf ' through sudo')."
  as_root apt-get -qq update || say "setup: 'apt-get update' failed; trying with the lists there are."
  for package in "${missing[@]}"; do
    if [ -n "$(apt-cache policy "$package" 2>/dev/null | sed -n 's/^ *Candidate: *//p' |
               grep -v '^(none)$')" ]; then
      wanted+=("$package")
    elif is_optional "$package"; then
      say "setup: this release has no package $package; going on without."
    else
      fail "this release has no package $package. Reprise needs Debian 12, Ubuntu 24.04 or newer," \
           "or install by hand what the package stands for and run this again."
    fi
  done
  [ ${#wanted[@]} -gt 0 ] || return 0
  if as_root env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes \
       apt-get -qq install -y --no-install-recommends -o DPkg::Lock::Timeout=120 \
       "${wanted[@]}" >/dev/null; then
    say "   Done."
    return 0
  fi
  [ -z "$(required_of_missing)" ] || fail "that did not work (see above). As root, run:" \
    "  apt-get update && apt-get install ${wanted[*]}" "then run this again."
}

system_packages() {
  local required
  find_missing
  if [ ${#missing[@]} = 0 ]; then
    detail "1. System packages: all there."
    return
  fi
  # An optional package that this machine cannot have is no reason to talk on every run.
  if [ -z "$(required_of_missing)" ] && [ -e build/.setup-optional ]; then
    detail "1. System packages: all there but the optional ${missing[*]}."
    return
  fi
  say "1. System packages. Missing:"
  printf '%s\n' "${report[@]}"
  if command -v apt-get >/dev/null 2>&1; then
    install_with_apt
    hash -r
    find_missing
  else
    say "There is no apt-get here. The names above are Debian's; install the same with your own"
    say "package manager (CMake, Ninja, nlohmann-json, CLI11, fmt, zlib, Nettle, GoogleTest,"
    say "RapidCheck, Google Benchmark)."
  fi
  required=$(required_of_missing)
  if [ -n "$required" ]; then
    printf 'setup: still missing or too old:\n' >&2
    printf '%s\n' "${report[@]}" >&2
    exit 1
  fi
  if [ ${#missing[@]} -gt 0 ]; then
    say "setup: going on without ${missing[*]}. Without dataset-fashion-mnist, training uses synthetic"
    say "       data, or a folder with the four IDX files that you pass with --data; without python3-dev,"
    say "       the Python package is not built."
    mkdir -p build && touch build/.setup-optional
  fi
}

# --- 2. LibTorch --------------------------------------------------------------------------------------
wanted_torch() {
  if [ -n "${REPRISE_TORCH_VERSION:-}" ]; then
    say "$REPRISE_TORCH_VERSION"
  else
    sed -n 's/^torch==//p' requirements.txt
  fi
}

# Prints the version in $venv without its "+cpu" or "+cu126" part. Prints nothing if there is none or if it
# has no headers.
torch_in_venv() {
  local file
  for file in $venv/lib/python3*/site-packages/torch/version.py; do
    if [ -f "$file" ] && scripts/torch_prefix.sh >/dev/null 2>&1; then
      sed -n "s/^__version__ = '\([^'+]*\).*/\1/p" "$file"
      return
    fi
  done
}

pip_install() {
  # PIP_NO_INPUT: pip never waits for a password. The index, proxy and cache are pip's usual settings. Python
  # compiles a module when it first imports it. To compile all of torch beforehand takes longer than the rest
  # of its installation.
  PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 $venv/bin/python -m pip install --no-compile \
    --progress-bar off \
    ${REPRISE_TORCH_INDEX:+--extra-index-url "$REPRISE_TORCH_INDEX"} "$@" </dev/null
}

# Installs torch into a fresh $venv. It takes the build for CPUs where pip's index has it, because that one is
# ten times smaller, and otherwise the standard build. Reprise is built against either, and never needs the
# CUDA toolkit.
install_torch() {
  local version
  version=$(wanted_torch)
  say "   pip install torch==$version (about 200 MB, a few minutes on a slow line)"
  if pip_install --quiet "torch==$version+cpu" 2>$venv/setup.log; then return 0; fi
  # A constraint of pip's settings such as torch<=2.14.1 does not let in a build whose version is 2.14.1+cpu.
  grep -qiE 'no matching distribution|could not find a version|ResolutionImpossible' $venv/setup.log || return 1
  say "   pip's index has no build of that version for CPUs alone: installing its standard build. That is"
  say "   usually the one for CUDA, of several GB. REPRISE_TORCH_INDEX can name an index that has the smaller"
  say "   build: the URL that https://pytorch.org/get-started/locally shows for Linux, Pip, CPU."
  pip_install --quiet "torch==$version" 2>$venv/setup.log
}

make_venv() {
  local python tried=0
  while read -r python; do
    can_make_venv "$python" || continue
    tried=1
    say "   $python -m venv $venv"
    rm -rf "$venv"
    "$python" -m venv "$venv" </dev/null || continue
    if install_torch; then
      rm -f $venv/setup.log
      return 0
    fi
    sed 's/^/   pip: /' $venv/setup.log >&2
  done < <(pythons)
  [ "$tried" = 1 ] || fail "no python3 (3.10 or newer) that can make an environment. On Debian:" \
                           "  apt-get install python3-venv"
  fail "torch could not be installed (see above). If pip has no build for this Python, point" \
       "REPRISE_PYTHON to another one; if you have a LibTorch, point REPRISE_TORCH_DIR to it."
}

libtorch() {
  local wanted have prefix
  wanted=$(wanted_torch)
  if [ -n "${REPRISE_TORCH_DIR:-}" ]; then
    prefix=$(scripts/torch_prefix.sh) || exit 1
    detail "2. LibTorch: REPRISE_TORCH_DIR is set, using $prefix."
    return
  fi
  have=$(torch_in_venv)
  if [ "$have" = "$wanted" ] && [ -x $venv/bin/python ]; then
    detail "2. LibTorch: torch $have is in $venv."
    return
  fi
  say "2. LibTorch $wanted. It comes with the torch package, installed into $venv of this folder."
  if [ -n "$have" ]; then say "   $venv has torch $have: making it anew."; fi
  make_venv
  [ "$(torch_in_venv)" = "$wanted" ] || fail "pip reported success, but $venv has no torch $wanted."
  say "   torch $(torch_in_venv) is in $venv."
}

# --- 3. More Python packages --------------------------------------------------------------------------
# The pinned packages of a requirements file that $venv has not got in that version.
missing_of() {
  local name version
  while IFS='=' read -r name _ version; do
    case "$name" in '' | '#'*) continue ;; esac
    compgen -G "$venv/lib/python3*/site-packages/${name//-/_}-$version.dist-info" >/dev/null ||
      say "$name==$version"
  done <"$1"
}

# Takes the requirements file, what it is for, and what is missing without it.
more_packages() {
  local file=$1 purpose=$2 without=$3 missing mark
  mark=build/.setup$venv-${file%.txt}
  [ -x $venv/bin/python ] || { detail "3. $purpose: left out, there is no $venv."; return; }
  missing=$(missing_of "$file")
  if [ -z "$missing" ]; then
    detail "3. $purpose: in $venv."
    return
  fi
  # If an index does not have these packages, that is no reason to talk on every run.
  if [ "$quiet" = 1 ] && [ "$mark" -nt "$file" ]; then return; fi
  say "3. $purpose, into $venv:" $missing
  if pip_install --quiet -r "$file" 2>$venv/setup.log; then
    rm -f $venv/setup.log "$mark"
    say "   Done."
  else
    sed 's/^/   pip: /' $venv/setup.log >&2
    say "   Going on without: $without 'make setup' tries again."
    mkdir -p build && touch "$mark"
  fi
}

system_packages
if [ "$clang" = 1 ]; then exit 0; fi
libtorch
if [ "$demo" = 1 ]; then exit 0; fi
more_packages requirements-python.txt "Tools of the Python package" \
  "everything but the Python package is built."
more_packages requirements-test.txt "SciPy for a test" "the test milp_oracle is skipped."
detail "Ready. Next: make demo"
