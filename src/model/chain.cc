#include "reprise/model/chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "reprise/model/errors.h"

namespace reprise {
namespace {

// Sums adds up every size and every time of a chain. It refuses negative numbers and sums above 64
// bits.
class Sums {
 public:
  void add(Bytes bytes, const std::string& pointer) { bytes_ = sum(bytes_, bytes, pointer); }
  void add(Nanos time, const std::string& pointer) { time_ = sum(time_, time, pointer); }
  void add(const Cost& cost, const std::string& pointer) {
    add(cost.time, pointer + "/ns");
    add(cost.workspace, pointer + "/workspace_bytes");
  }

 private:
  template <class Unit>
  static Quantity<Unit> sum(Quantity<Unit> total, Quantity<Unit> part, const std::string& pointer) {
    if (part.count() < 0) {
      throw InputError(
          fmt::format("{} is negative; sizes and times are integers >= 0", part.count()),
          {.pointer = pointer});
    }
    int64_t result = 0;
    if (__builtin_add_overflow(total.count(), part.count(), &result)) {
      throw InputError(
          "the sum of all sizes or of all times does not fit 64 bits; use smaller numbers",
          {.pointer = pointer});
    }
    return Quantity<Unit>(result);
  }

  Bytes bytes_;
  Nanos time_;
};

void check_option_name(const std::string& name, const std::string& pointer) {
  if (name.empty()) throw InputError("an option needs a name", {.pointer = pointer});
  if (name == "fast") {
    throw InputError("\"fast\" is the forward that keeps nothing; give the option another name",
                     {.pointer = pointer});
  }
}

void validate_stage(const Stage& stage, const std::string& pointer, Sums& sums) {
  sums.add(stage.output, pointer + "/output_bytes");
  sums.add(stage.output_gradient.value_or(stage.output), pointer + "/output_gradient_bytes");
  sums.add(stage.weight_gradient, pointer + "/weight_gradient_bytes");
  sums.add(stage.forward, pointer + "/forward");
  if (stage.options.empty()) {
    throw InputError("a stage needs at least one option: its backward has no other way to run",
                     {.pointer = pointer + "/options"});
  }
  std::set<std::string_view> names;
  for (size_t o = 0; o < stage.options.size(); ++o) {
    const StageOption& option = stage.options[o];
    const std::string here = fmt::format("{}/options/{}", pointer, o);
    check_option_name(option.name, here + "/name");
    if (!names.insert(option.name).second) {
      throw InputError(
          fmt::format("two options are named \"{}\"; names are unique in a stage", option.name),
          {.pointer = here + "/name"});
    }
    sums.add(option.saved, here + "/saved_bytes");
    sums.add(option.forward, here + "/forward");
    sums.add(option.backward, here + "/backward");
  }
}

bool reads_output(const Stage& stage) {
  return std::any_of(stage.options.begin(), stage.options.end(),
                     [](const StageOption& option) { return option.reads_output; });
}

void check_consumed_input(const Chain& chain, size_t i) {
  const std::vector<StageOption>& options = chain.stages[i].options;
  for (size_t o = 0; o < options.size(); ++o) {
    if (!options[o].consumes_input) continue;
    const Location here{.pointer = fmt::format("/stages/{}/options/{}/consumes_input", i, o)};
    if (i == 0) {
      throw InputError("the first stage cannot give back its input: that is the caller's", here);
    }
    if (reads_output(chain.stages[i - 1])) {
      throw InputError(
          "the stage cannot give back its input: the backward of the stage before reads it later",
          here);
    }
  }
}

}  // namespace

Bytes boundary_bytes(const Chain& chain, size_t boundary) {
  return boundary == 0 ? chain.input.bytes : chain.stages.at(boundary - 1).output;
}

Bytes boundary_gradient_bytes(const Chain& chain, size_t boundary) {
  if (boundary == 0) return chain.input.gradient;
  const Stage& stage = chain.stages.at(boundary - 1);
  return stage.output_gradient.value_or(stage.output);
}

void validate(const Chain& chain) {
  Sums sums;
  sums.add(chain.fixed, "/fixed_bytes");
  sums.add(chain.input.bytes, "/input/bytes");
  sums.add(chain.input.gradient, "/input/gradient_bytes");
  if (chain.stages.empty()) {
    throw InputError("a chain needs at least one stage", {.pointer = "/stages"});
  }
  for (size_t i = 0; i < chain.stages.size(); ++i) {
    validate_stage(chain.stages[i], fmt::format("/stages/{}", i), sums);
    check_consumed_input(chain, i);
  }
  sums.add(chain.loss.cost, "/loss");
  if (chain.loss.consumes && reads_output(chain.stages.back())) {
    throw InputError(
        "the loss cannot give back the last output: an option of the last stage reads it in its "
        "backward",
        {.pointer = "/loss/consumes"});
  }
}

Chain restrict_exactness(const Chain& chain, Exactness allowed) {
  Chain result = chain;
  for (size_t i = 0; i < result.stages.size(); ++i) {
    std::vector<StageOption>& options = result.stages[i].options;
    std::erase_if(options, [&](const StageOption& option) { return option.exactness > allowed; });
    if (options.empty()) {
      throw InputError(fmt::format("stage \"{}\" has no option that is {}; allow less exact ones",
                                   result.stages[i].name, to_string(allowed)),
                       {.pointer = fmt::format("/stages/{}/options", i)});
    }
  }
  return result;
}

const char* to_string(Exactness exactness) {
  switch (exactness) {
    case Exactness::kBitwise:
      return "bitwise";
    case Exactness::kRounding:
      return "rounding";
    case Exactness::kApproximate:
      return "approximate";
  }
  return "?";
}

}  // namespace reprise
