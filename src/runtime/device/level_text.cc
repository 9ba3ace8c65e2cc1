#include "runtime/device/level_text.h"

#include <fmt/format.h>

#include "reprise/runtime/shared_peak.h"

namespace reprise::runtime::internal::device {

std::string with_foreseen(Bytes bytes) {
  if (bytes <= Bytes(0)) return "";
  return fmt::format("\n{} are for state that optimizers of the program make at their first step.",
                     format_bytes_exact(bytes));
}

std::string with_growth(Bytes planned, Bytes level) {
  if (level <= planned) return "";
  return fmt::format(
      "\nMemory outside of the step grew by {} since it was planned, to {}. All that the program "
      "holds while the step runs counts in the budget.",
      format_bytes_exact(level - planned), format_bytes(level));
}

}  // namespace reprise::runtime::internal::device

namespace reprise::runtime {

std::string beyond_first_batch(const SharedPeak& share_of, Bytes inputs) {
  if (inputs <= share_of.inputs) return "";
  return fmt::format(
      "\nThe budget is a share of plain training's peak for the first batch, whose inputs had {}; "
      "these have {}. Begin with the largest batch, or name the budget in bytes.",
      format_bytes(share_of.inputs), format_bytes(inputs));
}

}  // namespace reprise::runtime
