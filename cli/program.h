// Both programs do this around their commands: parse, run, and turn exceptions into messages and
// codes.
#pragma once

#include <string>
#include <vector>

#include "command.h"

namespace reprise::cli {

struct ProgramInfo {
  std::string description;
  std::string footer;  // the end of --help
  std::vector<void (*)(CLI::App&, Handler&)> commands;
};

// Runs the program and returns the exit code. Never throws.
int run_program(int argc, char** argv, const ProgramInfo& info);

// Runs `work` and turns its exceptions into a message on stderr and an exit code.
int guarded(const Handler& work);

}  // namespace reprise::cli
