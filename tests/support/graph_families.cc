#include "support/graph_families.h"

namespace reprise::testing {
namespace {

RandomGraphOptions plain(int most) {
  RandomGraphOptions options;
  options.max_forward = most;
  options.variants = options.roles = options.takes = options.choices = options.once = false;
  return options;
}

RandomGraphOptions with_variants(int most) {
  RandomGraphOptions options = plain(most);
  options.variants = options.roles = true;
  return options;
}

RandomGraphOptions with_takes(int most) {
  RandomGraphOptions options = plain(most);
  options.takes = options.once = true;
  return options;
}

RandomGraphOptions with_choices(int most) {
  RandomGraphOptions options = plain(most);
  options.choices = true;
  return options;
}

RandomGraphOptions with_late_ops(int most) {
  RandomGraphOptions options = plain(most);
  options.choices = options.takes = options.late = true;
  return options;
}

RandomGraphOptions with_masks(int most) {
  RandomGraphOptions options = plain(most);
  options.choices = options.takes = options.masks = true;
  return options;
}

RandomGraphOptions everything(int most) {
  RandomGraphOptions options;
  options.max_forward = most;
  return options;
}

RandomGraphOptions ties(int most) {
  RandomGraphOptions options = everything(most);
  options.max_size = 2;
  options.max_time = 2;
  return options;
}

}  // namespace

std::vector<GraphFamily> graph_families() {
  return {{"plain", 300, plain(5)},           {"variants", 250, with_variants(4)},
          {"takes", 250, with_takes(4)},      {"choices", 200, with_choices(3)},
          {"late", 250, with_late_ops(3)},    {"masks", 250, with_masks(3)},
          {"everything", 200, everything(3)}, {"ties", 200, ties(3)}};
}

}  // namespace reprise::testing
