// Every table of figures says these things about the run that it comes from.
#pragma once

#include <string>

namespace reprise::bench {

struct RunInfo {
  std::string command = {};  // reproduces the run
  std::string time = {};     // UTC, such as "2026-11-24 21:31"
  std::string commit = {};   // with "and changes" if a tracked file outside of docs/ differed
  std::string processor = {};
  int threads = 0;
  std::string versions = {};
};

// Returns the facts of this run. The command is as one would type it in the root of the repository.
// Zero threads stand for as many as the machine has.
RunInfo run_info(const std::string& program, int argc, char** argv, int threads,
                 const std::string& versions);

// Returns the line that says all of this but the command. scripts/stored_tables.py reads it, and
// bench/python/run_info.py writes the same line.
std::string measured(const RunInfo& info);

// Returns the command as an indented block of Markdown, in lines of at most 100 columns.
std::string as_code_block(const std::string& command);

}  // namespace reprise::bench
