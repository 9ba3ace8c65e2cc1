// The second program, `reprise-runtime`: it has the commands that need LibTorch.
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

// Beside this program, then in PATH.
std::optional<std::filesystem::path> find_runtime();

// Becomes `reprise-runtime` with the same arguments, untouched. Throws InputError that says how to
// build it if there is none.
[[noreturn]] void become_runtime(char** argv);

// Runs it, its output going where ours goes, or into `output` if that is given. Its exit code; 128 + the
// signal that killed it.
int run_runtime(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                std::string* output = nullptr);

}  // namespace reprise::cli
