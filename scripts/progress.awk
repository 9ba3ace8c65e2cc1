# Turns what Ninja says into a line for each part that is ready. Whatever else there is, such as errors, passes as it is.
#
#   NINJA_STATUS='@ %f %t %e ' cmake --build build/demo | awk -f scripts/progress.awk

$1 == "@" && NF > 4 {
  what = $NF
  if (sub(/.*\/unity_/, "", what)) {  # the files of a room, which are compiled together
    sub(/_*cxx\.cxx\.o$/, "", what)
    gsub(/_+/, " ", what)
    sub(/^ /, "", what)
  }
  sub(/.*\//, "", what)
  sub(/\.o$/, "", what)
  sub(/cmake_pch.*/, "headers of LibTorch", what)
  printf "  %2d of %d, %3d s: %s\n", $2, $3, $4, what
  fflush()
  next
}

{
  print
  fflush()
}
