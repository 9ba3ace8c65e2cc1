// What both programs do around their commands: parse, run, turn exceptions into messages and codes.
#pragma once

#include <string>
#include <vector>

#include "command.h"

namespace reprise::cli {

struct ProgramInfo {
  std::string description;
  std::string footer;  // of --help
  std::vector<void (*)(CLI::App&, Handler&)> commands;
};

// Never throws; the exit code.
int run_program(int argc, char** argv, const ProgramInfo& info);

// Runs `work` and turns what it throws into a message on stderr and an exit code.
int guarded(const Handler& work);

}  // namespace reprise::cli
