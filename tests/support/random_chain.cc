#include "support/random_chain.h"

#include <fmt/format.h>

#include <algorithm>

namespace reprise::testing {
namespace {

// Draws parts of a chain. It has its own arithmetic instead of std distributions, so that chains
// are the same on every library.
class Draw {
 public:
  Draw(std::mt19937_64& random, const RandomChainOptions& options)
      : random_(random), options_(options) {}

  int64_t between(int64_t low, int64_t high) {
    const auto count = static_cast<uint64_t>(high - low) + 1;
    return low + static_cast<int64_t>(random_() % count);
  }
  bool coin() { return (random_() >> 32 & 1) != 0; }

  Bytes size() { return Bytes(between(0, options_.max_size)); }
  Nanos time() { return Nanos(between(0, options_.max_time)); }
  Bytes workspace() {
    if (!options_.workspaces) return Bytes(0);
    return Bytes(between(0, options_.max_size * (options_.dominant_workspaces ? 4 : 1)));
  }
  Cost cost() {
    const Nanos t = time();
    return {t, workspace()};
  }

  StageOption option(int number, const Stage& stage) {
    StageOption option;
    option.name = number == 0 ? "keep" : fmt::format("o{}", number);
    option.saved = size();
    if (options_.free_reads) {
      option.reads_input = coin();
      option.reads_output = coin();
    }
    option.consumes = options_.consumes && coin();
    option.forward = cost();
    if (!options_.cheap_options) {
      option.forward.time = std::max(option.forward.time, stage.forward.time);
      option.forward.workspace = std::max(option.forward.workspace, stage.forward.workspace);
    }
    option.backward = cost();
    if (options_.early_stops && !option.reads_output && coin()) {
      option.stopped = Cost{Nanos(between(0, option.forward.time.count())),
                            Bytes(between(0, (option.forward.workspace + stage.output).count()))};
    }
    if (options_.inexact_options && number > 0) {
      option.exactness = static_cast<Exactness>(between(0, 2));
    }
    return option;
  }

  Stage stage(int number) {
    Stage stage;
    stage.name = fmt::format("stage{}", number);
    stage.output = size();
    if (options_.own_gradients && coin()) stage.output_gradient = size();
    if (options_.weight_gradients) stage.weight_gradient = size();
    stage.random = options_.random_stages && coin();
    stage.forward = cost();
    const int64_t count = between(1, options_.max_options);
    for (int o = 0; o < count; ++o) stage.options.push_back(option(o, stage));
    return stage;
  }

 private:
  std::mt19937_64& random_;
  const RandomChainOptions options_;
};

bool read_output(const Stage& stage) {
  return std::any_of(stage.options.begin(), stage.options.end(),
                     [](const StageOption& o) { return o.reads_output; });
}

RandomChainOptions effective(RandomChainOptions options) {
  if (!options.founding_model) return options;
  options.max_options = 1;
  options.free_reads = options.consumes = options.weight_gradients = options.own_gradients = false;
  options.inexact_options = false;
  options.cheap_options = false;
  options.early_stops = false;
  return options;
}

}  // namespace

Chain random_chain(std::mt19937_64& random, const RandomChainOptions& requested) {
  const RandomChainOptions options = effective(requested);
  Draw draw(random, options);
  Chain chain;
  chain.name = "random";
  if (options.fixed) chain.fixed = draw.size();
  chain.input.bytes = draw.size();
  chain.input.gradient = options.own_gradients ? draw.size() : chain.input.bytes;
  const int64_t stages = draw.between(options.min_stages, options.max_stages);
  for (int i = 0; i < stages; ++i) chain.stages.push_back(draw.stage(i));
  for (size_t i = 1; i < chain.stages.size() && options.consumes; ++i) {
    if (read_output(chain.stages[i - 1])) continue;
    for (StageOption& option : chain.stages[i].options) {
      option.consumes_input = draw.coin();
    }
  }
  chain.loss.cost = draw.cost();
  chain.loss.consumes = options.consumes && draw.coin() && !read_output(chain.stages.back());
  return chain;
}

std::string describe(const Chain& chain) {
  const auto cost = [](const Cost& c) {
    return fmt::format(R"({{"ns": {}, "workspace_bytes": {}}})", c.time.count(),
                       c.workspace.count());
  };
  std::string stages;
  for (size_t i = 0; i < chain.stages.size(); ++i) {
    const Stage& stage = chain.stages[i];
    std::string options;
    for (const StageOption& o : stage.options) {
      options += fmt::format(
          R"({}{{"name": "{}", "saved_bytes": {}, "reads_input": {}, "reads_output": {}, )"
          R"("consumes": {}, "consumes_input": {}, "forward": {}, "backward": {}, {}"exactness": "{}"}})",
          options.empty() ? "" : ", ", o.name, o.saved.count(), o.reads_input, o.reads_output,
          o.consumes, o.consumes_input, cost(o.forward), cost(o.backward),
          o.stopped ? fmt::format(R"("stopped": {}, )", cost(*o.stopped)) : "",
          to_string(o.exactness));
    }
    stages += fmt::format(
        R"({}{{"name": "{}", "output_bytes": {}, "output_gradient_bytes": {}, )"
        R"("weight_gradient_bytes": {}, "random": {}, "forward": {}, "options": [{}]}})",
        i == 0 ? "" : ", ", stage.name, stage.output.count(),
        boundary_gradient_bytes(chain, i + 1).count(), stage.weight_gradient.count(), stage.random,
        cost(stage.forward), options);
  }
  return fmt::format(
      R"({{"format": "reprise.chain", "version": 1, "name": "{}", "fixed_bytes": {}, )"
      R"("input": {{"bytes": {}, "gradient_bytes": {}}}, "stages": [{}], )"
      R"("loss": {{"ns": {}, "workspace_bytes": {}, "consumes": {}}}}})",
      chain.name, chain.fixed.count(), chain.input.bytes.count(), chain.input.gradient.count(),
      stages, chain.loss.cost.time.count(), chain.loss.cost.workspace.count(), chain.loss.consumes);
}

}  // namespace reprise::testing
