#!/usr/bin/env bash
# Fuzzes every target for some seconds each, from the inputs kept in corpus/: run.sh PROGRAM [SECONDS]
# [TARGET...]
# A finding ends the run with its input in build/fuzz/findings. Give it a name that says what it is, put it
# into corpus/TARGET, and mend the code. New inputs that reach new code stay in build/fuzz/found.
set -euo pipefail
program=$(realpath "$1") seconds=${2:-30}
shift $(($# > 2 ? 2 : $#))
here=$(cd "$(dirname "$0")" && pwd)
build=$(dirname "$program")
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=($(ls "$here/corpus"))
total=0
for target in "${targets[@]}"; do
  mkdir -p "$build/found/$target" "$build/findings"
  printf '%-12s' "$target"
  # One input has at most 4096 bytes. It may take at most 10 s and 1 GiB.
  if ! REPRISE_FUZZ_TARGET=$target "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 \
      -malloc_limit_mb=256 -max_len=4096 -dict="$here/json.dict" -print_final_stats=1 -verbosity=1 \
      -artifact_prefix="$build/findings/$target-" "$build/found/$target" "$here/corpus/$target" \
      >"$build/$target.log" 2>&1; then
    echo "FOUND something:"
    tail -n 40 "$build/$target.log"
    exit 1
  fi
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log")
  kept=$(ls "$here/corpus/$target" | wc -l)
  total=$((total + runs))
  echo "$runs inputs in $seconds s, from $kept kept ones: no finding"
done
echo "fuzz: $total inputs, no finding"
