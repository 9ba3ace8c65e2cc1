// This is libFuzzer's entry. All targets share one program: REPRISE_FUZZ_TARGET in the environment
// names the target.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "fuzz/targets.h"

namespace {

reprise::fuzz::Target chosen_target() {
  const char* name = std::getenv("REPRISE_FUZZ_TARGET");
  for (const reprise::fuzz::Target& target : reprise::fuzz::targets()) {
    if (name != nullptr && std::string_view(name) == target.name) return target;
  }
  std::fprintf(stderr, "REPRISE_FUZZ_TARGET must name a target, see tests/fuzz/targets.h\n");
  std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const reprise::fuzz::Target target = chosen_target();
  target.run({reinterpret_cast<const char*>(data), size});
  return 0;
}
