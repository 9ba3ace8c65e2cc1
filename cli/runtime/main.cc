// `reprise` starts `reprise-runtime` for the commands that need LibTorch.
#include "commands.h"
#include "program.h"

int main(int argc, char** argv) {
  using namespace reprise::cli;  // NOLINT: main() only
  return run_program(argc, argv,
                     {"The commands of reprise that need LibTorch.",
                      "Started by `reprise`; `reprise --help` lists all commands.",
                      {add_train, add_profile, add_models, add_alternatives, add_runtime_doctor}});
}
