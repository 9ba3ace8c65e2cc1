// Every table of figures says these things about the run that it comes from.
#pragma once

#include <string>

namespace reprise::bench {

struct RunInfo {
  std::string command = {};  // reproduces the run
  std::string processor = {};
  std::string build = {};
};

// Returns the name of this machine's processor, for people.
std::string processor();

// Returns the facts of this run. The command is as one would type it in the root of the repository.
RunInfo run_info(const std::string& program, int argc, char** argv, const std::string& build);

// Returns the command as an indented block of Markdown, in lines of at most 100 columns.
std::string as_code_block(const std::string& command);

}  // namespace reprise::bench
