#include "runtime/chain/option_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace reprise::runtime::internal::chain {

using device::time_run;
using device::TimedRun;

void measure_options(const OptionRuns& runs, RunTimes& times, const std::function<void()>& again,
                     const std::function<GradientBook()>& sums, std::vector<StageOption>& options) {
  std::vector<std::vector<TimedRun>> forward(options.size()), backward(options.size()),
      stopped(options.size());
  const Tensors x = runs.input.restore();
  const auto once = [&](size_t o) {
    again();
    std::pair<Tensors, Kept> kept;
    forward[o].push_back(time_run(
        runs.device, [&] { kept = run_keep(runs.stage, x, runs.parameters, runs.saved_form[o]); }));
    kept.first.clear();
    Tensors g = runs.gradient.restore();
    GradientBook book = sums();
    backward[o].push_back(time_run(runs.device, [&] {
      run_backward(runs.stage, std::move(kept.second), std::move(g), runs.parameters, book);
    }));
    if (options[o].stopped) {
      again();
      stopped[o].push_back(time_run(runs.device, [&] {
        run_stopped(runs.stage, x, runs.parameters, runs.saved_form[o], runs.noted[o], runs.device,
                    begin_pass(runs.stage.parameters, runs.parameters));
      }));
    }
    return backward[o].back().wall.count();
  };
  // The options take turns, so that a change of the machine meanwhile affects all of them.
  times.repeat([&] {
    int64_t longest = 0;
    for (size_t o = 0; o < options.size(); ++o) longest = std::max(longest, once(o));
    return longest;
  });
  for (size_t o = 0; o < options.size(); ++o) {
    const std::string& name = options[o].name;
    options[o].backward.time = times.note(fmt::format("B{}", runs.number), name, backward[o]);
    options[o].forward.time = times.note(fmt::format("F{}", runs.number), name, forward[o]);
    if (options[o].stopped) {
      options[o].stopped->time =
          times.note(fmt::format("F{}", runs.number), stopped_name(options[o]), stopped[o]);
    }
    if (o == 0 || runs.saved_form[o].way > 0) continue;
    // An option does all the work of the option before it, and more. Alone in memory, where pages
    // are fresh, an option that holds less can be faster; in a step it is not. `spread` has the
    // measured times.
    options[o].backward.time = std::max(options[o].backward.time, options[o - 1].backward.time);
    options[o].forward.time = std::max(options[o].forward.time, options[o - 1].forward.time);
  }
}

}  // namespace reprise::runtime::internal::chain
