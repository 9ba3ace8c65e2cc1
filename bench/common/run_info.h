// What every table of figures says about the run that it comes from.
#pragma once

#include <string>

namespace reprise::bench {

struct RunInfo {
  std::string command = {};  // that reproduces the run
  std::string processor = {};
  std::string build = {};
};

// Of this machine, for people.
std::string processor();

// The command as it would be typed in the root of the repository.
RunInfo run_info(const std::string& program, int argc, char** argv, const std::string& build);

// The command as an indented block of Markdown, in lines of at most 100 columns.
std::string as_code_block(const std::string& command);

}  // namespace reprise::bench
