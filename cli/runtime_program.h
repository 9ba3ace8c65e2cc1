// `reprise-runtime` is the second program. It has the commands that need LibTorch.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::cli {

struct RuntimeCommand {
  const char* name;
  const char* summary;
};
std::span<const RuntimeCommand> runtime_commands();
bool is_runtime_command(std::string_view name);

// Looks for `reprise-runtime` beside this program, then in PATH.
std::optional<std::filesystem::path> find_runtime();

// Replaces this process by `reprise-runtime` with the same arguments. If that program is missing,
// the function throws InputError with a text on how to build it.
[[noreturn]] void become_runtime(char** argv);

// Runs `program` and returns its exit code, or 128 + the signal that killed it. The output of the
// program goes where ours goes, or into `output` if that is given.
int run_runtime(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                std::string* output = nullptr);

}  // namespace reprise::cli
