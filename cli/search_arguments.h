// These are the options of a search, which plan and frontier share.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>

#include "reprise/io/json.h"
#include "reprise/plan/plan.h"
#include "reprise/plan/registry.h"

namespace reprise::cli {

// Adds --allow to a command that plans, captures or trains.
inline CLI::Option* add_allow(CLI::App& command, Exactness& allow, const std::string& what) {
  const std::map<std::string, Exactness> names{{"bitwise", Exactness::kBitwise},
                                               {"rounding", Exactness::kRounding},
                                               {"approximate", Exactness::kApproximate}};
  return command
      .add_option_function<std::string>(
          "--allow", [&allow, names](const std::string& name) { allow = names.at(name); },
          "least exact " + what + ": bitwise (default), rounding, approximate")
      ->type_name("EXACTNESS")
      ->check(CLI::IsMember({"bitwise", "rounding", "approximate"}).description(""));
}

// The arguments are kept as the user wrote them.
struct SearchArguments {
  std::string planner;
  std::string schedule_class;
  std::string time_limit;
  int slots = 0;
  int threads = 0;
  Exactness allow = Exactness::kBitwise;
  bool quiet = false;
};

// Returns the names of all classes of schedules that a planner may be asked for, or searches.
inline std::set<std::string> schedule_classes() {
  std::set<std::string> names{
      "inputs-only", "persistent", "persistent+dropped-inputs", "floating+dropped-inputs",
      "histories",   "in_turn"};
  for (const PlannerInfo& planner : planners()) names.insert(planner.schedule_class);
  return names;
}

inline void add_search_options(CLI::App& command, SearchArguments& arguments,
                               const std::string& default_limit) {
  arguments.time_limit = default_limit;
  command.add_option("--planner", arguments.planner, "see `reprise planners`")->type_name("NAME");
  command
      .add_option(
          "--class", arguments.schedule_class,
          "of schedules to search; of chains: inputs-only, persistent, or "
          "persistent+dropped-inputs (default: the largest as far as time allows); of floating and "
          "revolve: see their pages; of graphs: in_turn (default: all)")
      ->type_name("NAME")
      ->check(CLI::IsMember(schedule_classes()).description(""));
  command
      .add_option("--time-limit", arguments.time_limit,
                  "of the whole command (default " + default_limit + ")")
      ->type_name("TIME");
  command
      .add_option("--slots", arguments.slots,
                  "of the memory, for --planner chain_slots (default: as many as time allows)")
      ->type_name("N")
      ->check(CLI::Range(0, 1'000'000).description(""));
  command.add_option("--threads", arguments.threads, "of the search (default: all cores)")
      ->type_name("N")
      ->check(CLI::Range(0, 4096).description(""));
  add_allow(command, arguments.allow, "variants that may be used");
  command.add_flag("--quiet,-q", arguments.quiet, "no progress and no messages but errors");
}

// A CommandClock starts with the command, for which its time limit holds as a whole.
class CommandClock {
 public:
  // Leaves the search what the command has left when the problem has been read. The work behind the search,
  // which checks the plan and writes it, takes a few times as long as the reading.
  void leave_rest(PlanOptions& options) const {
    const auto read = std::chrono::steady_clock::now() - begin_;
    const Nanos other(std::chrono::nanoseconds(read).count() * (1 + kBehind));
    // A problem that takes the whole time to be read is searched a little, too.
    const Nanos least(options.time_limit.count() / 10);
    options.time_limit = std::max(least, options.time_limit - other);
  }

 private:
  static constexpr int64_t kBehind = 4;

  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

inline PlanOptions search_options(const SearchArguments& arguments) {
  PlanOptions options;
  options.planner = arguments.planner;
  options.schedule_class = arguments.schedule_class;
  options.time_limit = parse_duration(arguments.time_limit);
  options.slots = arguments.slots;
  options.threads = arguments.threads;
  options.allow = arguments.allow;
  return options;
}

}  // namespace reprise::cli
