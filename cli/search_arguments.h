// The options of a search, which plan and frontier share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "reprise/io/json.h"
#include "reprise/plan/plan.h"

namespace reprise::cli {

// As the user wrote them.
struct SearchArguments {
  std::string planner;
  std::string schedule_class;
  std::string time_limit;
  int threads = 0;
  std::string allow = "bitwise";
  bool quiet = false;
};

inline void add_search_options(CLI::App& command, SearchArguments& arguments,
                               const std::string& default_limit) {
  arguments.time_limit = default_limit;
  command.add_option("--planner", arguments.planner, "see `reprise planners`")->type_name("NAME");
  command
      .add_option("--class", arguments.schedule_class,
                  "of schedules to search: persistent, or persistent+dropped-inputs (default: the "
                  "larger one as far as time allows)")
      ->type_name("NAME");
  command
      .add_option("--time-limit", arguments.time_limit,
                  "of the search (default " + default_limit + ")")
      ->type_name("TIME");
  command.add_option("--threads", arguments.threads, "of the search (default: all cores)")
      ->type_name("N")
      ->check(CLI::Range(0, 4096).description(""));
  command
      .add_option("--allow", arguments.allow,
                  "least exact variants that may be used: bitwise (default), rounding, approximate")
      ->type_name("EXACTNESS")
      ->check(CLI::IsMember({"bitwise", "rounding", "approximate"}).description(""));
  command.add_flag("--quiet,-q", arguments.quiet, "no progress and no messages but errors");
}

inline PlanOptions search_options(const SearchArguments& arguments) {
  PlanOptions options;
  options.planner = arguments.planner;
  options.schedule_class = arguments.schedule_class;
  options.time_limit = parse_duration(arguments.time_limit);
  options.threads = arguments.threads;
  if (arguments.allow == "rounding") options.allow = Exactness::kRounding;
  if (arguments.allow == "approximate") options.allow = Exactness::kApproximate;
  return options;
}

}  // namespace reprise::cli
