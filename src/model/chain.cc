#include "reprise/model/chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <string>

#include "model/stages.h"
#include "reprise/model/errors.h"

namespace reprise {

using internal::Sums;

namespace {

void check_option_name(const std::string& name, const std::string& pointer) {
  if (name.empty()) throw InputError("an option needs a name", {.pointer = pointer});
  if (name == "fast") {
    throw InputError("\"fast\" is the forward that keeps nothing; give the option another name",
                     {.pointer = pointer});
  }
}

// A run that stops early has a name of its own in the graph (lower.h).
void check_stopped(const Stage& stage, const StageOption& option, const std::string& pointer) {
  if (!option.stopped) return;
  if (option.reads_output) {
    throw InputError("no run stops early where the backward reads the output",
                     {.pointer = pointer});
  }
  if (option.stopped->time > option.forward.time ||
      option.stopped->workspace > option.forward.workspace + stage.output) {
    throw InputError("a run that stops early takes no more time or memory than the whole forward",
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
  std::set<std::string, std::less<>> names;
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
    check_stopped(stage, option, here + "/stopped");
  }
  for (size_t o = 0; o < stage.options.size(); ++o) {
    const StageOption& option = stage.options[o];
    if (option.stopped && names.contains(stopped_name(option))) {
      throw InputError(fmt::format("\"{}\" is the name of a run of option \"{}\" that stops early",
                                   stopped_name(option), option.name),
                       {.pointer = fmt::format("{}/options/{}/stopped", pointer, o)});
    }
  }
}

bool reads_output(const Stage& stage) {
  return std::any_of(stage.options.begin(), stage.options.end(),
                     [](const StageOption& option) { return option.reads_output; });
}

void check_consumed_input(const std::vector<Stage>& stages, size_t i, const std::string& pointer) {
  const std::vector<StageOption>& options = stages[i].options;
  for (size_t o = 0; o < options.size(); ++o) {
    if (!options[o].consumes_input) continue;
    const Location here{.pointer = fmt::format("{}/options/{}/consumes_input", pointer, o)};
    if (i == 0) {
      throw InputError("the first stage cannot give back its input: that is the caller's", here);
    }
    if (reads_output(stages[i - 1])) {
      throw InputError(
          "the stage cannot give back its input: the backward of the stage before reads it later",
          here);
    }
  }
}

}  // namespace

std::string stopped_name(const StageOption& option) { return option.name + "+stop"; }

Bytes boundary_bytes(const Chain& chain, size_t boundary) {
  return boundary == 0 ? chain.input.bytes : chain.stages.at(boundary - 1).output;
}

Bytes boundary_gradient_bytes(const Chain& chain, size_t boundary) {
  if (boundary == 0) return chain.input.gradient;
  const Stage& stage = chain.stages.at(boundary - 1);
  return stage.output_gradient.value_or(stage.output);
}

namespace internal {

void check_stages(const ChainInput& input, const std::vector<Stage>& stages, const char* what,
                  const std::string& pointer, Sums& sums) {
  sums.add(input.bytes, pointer + "/input/bytes");
  sums.add(input.gradient, pointer + "/input/gradient_bytes");
  if (stages.empty()) {
    throw InputError(fmt::format("a {} needs at least one stage", what),
                     {.pointer = pointer + "/stages"});
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    const std::string here = fmt::format("{}/stages/{}", pointer, i);
    validate_stage(stages[i], here, sums);
    check_consumed_input(stages, i, here);
  }
}

void check_loss(const ChainLoss& loss, const std::vector<Stage>& stages) {
  if (!loss.consumes || !reads_output(stages.back())) return;
  throw InputError(
      "the loss cannot give back the last output: an option of the last stage reads it in its "
      "backward",
      {.pointer = "/loss/consumes"});
}

void restrict_stages(std::vector<Stage>& stages, Exactness allowed, const std::string& pointer) {
  for (size_t i = 0; i < stages.size(); ++i) {
    std::vector<StageOption>& options = stages[i].options;
    std::erase_if(options, [&](const StageOption& option) { return option.exactness > allowed; });
    if (options.empty()) {
      throw InputError(fmt::format("stage \"{}\" has no option that is {}; allow less exact ones",
                                   stages[i].name, to_string(allowed)),
                       {.pointer = fmt::format("{}/stages/{}/options", pointer, i)});
    }
  }
}

}  // namespace internal

void validate(const Chain& chain) {
  Sums sums;
  sums.add(chain.fixed, "/fixed_bytes");
  internal::check_stages(chain.input, chain.stages, "chain", "", sums);
  sums.add(chain.loss.cost, "/loss");
  internal::check_loss(chain.loss, chain.stages);
}

Chain restrict_exactness(const Chain& chain, Exactness allowed) {
  Chain result = chain;
  internal::restrict_stages(result.stages, allowed, "");
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
