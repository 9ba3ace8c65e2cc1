// These are the options that give a machine: --machine FILE, or its short form --offload.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "reprise/io/json.h"
#include "reprise/model/errors.h"
#include "reprise/model/machine.h"

namespace reprise::cli {

struct MachineArguments {
  std::string file;
  std::string offload;
};

inline bool is_given(const MachineArguments& arguments) {
  return !arguments.file.empty() || !arguments.offload.empty();
}

inline void add_machine_options(CLI::App& command, MachineArguments& arguments) {
  CLI::Option* file = command
                          .add_option("--machine", arguments.file,
                                      "memories that values may move to, devices, and channels")
                          ->type_name("FILE");
  command
      .add_option("--offload", arguments.offload,
                  "short for a machine with one memory more: host=12GB/s, or "
                  "disk=1.1GB/s,0.65GB/s (out, and back)")
      ->type_name("MEMORY")
      ->check([](const std::string& text) {
        return text.empty() ? "it is empty: write it like host=12GB/s, or leave it out" : "";
      })
      ->excludes(file);
}

// Returns the device alone if no machine was given.
inline Machine machine_of(const MachineArguments& arguments) {
  if (!arguments.file.empty()) return load_machine(arguments.file);
  if (!arguments.offload.empty()) return parse_offload(arguments.offload);
  return {};
}

// Returns the machine to judge a plan from `file` with. Throws InputError if the plan was made for
// another machine, or for one while none was given.
inline Machine machine_for(const Plan& plan, const MachineArguments& arguments,
                           const std::string& file) {
  const Machine machine = machine_of(arguments);
  if (plan.machine_sha256.empty()) return machine;
  const Location where{.file = file, .pointer = "/machine", .line = 0};
  if (machine.channels.empty()) {
    throw InputError(
        "this plan is for a machine with several memories; give it with --machine FILE "
        "or --offload, as it was given to `reprise plan`",
        where);
  }
  if (machine_sha256(machine) != plan.machine_sha256) {
    throw InputError(
        "this plan is for another machine than the one given (the hashes differ); give "
        "the machine that it was made for, or plan again",
        where);
  }
  return machine;
}

}  // namespace reprise::cli
