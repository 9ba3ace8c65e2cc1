#include "runtime_program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "reprise/model/errors.h"

extern char** environ;

namespace reprise::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kProgram = "reprise-runtime";

constexpr std::array<RuntimeCommand, 4> kCommands = {{
    {"train", "train a model on real data inside a byte budget"},
    {"profile", "measure a model into a chain or graph"},
    {"models", "list the models that train and profile know"},
    {"alternatives", "list the other ways to run operations and stages that a plan may choose"},
}};

// Reads to the end of the stream, and closes it.
void read_all(int stream, std::string& output) {
  std::array<char, 4096> part;
  while (true) {
    const ssize_t count = ::read(stream, part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    output.append(part.data(), static_cast<size_t>(count));
  }
  ::close(stream);
}

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::span<const RuntimeCommand> runtime_commands() { return kCommands; }

bool is_runtime_command(std::string_view name) {
  return std::any_of(kCommands.begin(), kCommands.end(),
                     [&](const RuntimeCommand& command) { return command.name == name; });
}

std::optional<fs::path> find_runtime() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (!error && is_program(self.parent_path() / kProgram)) return self.parent_path() / kProgram;
  const char* variable = std::getenv("PATH");
  std::string_view rest = variable != nullptr ? variable : "";
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    // An empty entry means the current folder, where a stranger may have put a program.
    if (!folder.empty() && is_program(fs::path(folder) / kProgram)) {
      return fs::path(folder) / kProgram;
    }
  }
  return std::nullopt;
}

void become_runtime(char** argv) {
  const std::optional<fs::path> program = find_runtime();
  if (!program) {
    throw InputError(
        "\"" + std::string(argv[1]) +
        "\" needs the program reprise-runtime, which is neither beside this one nor in "
        "PATH. Build it with LibTorch: cmake --preset release -DREPRISE_BUILD_RUNTIME=ON "
        "&& cmake --build --preset release");
  }
  ::execv(program->c_str(), argv);
  throw InputError("cannot start it: " + std::generic_category().message(errno),
                   {.file = program->string(), .pointer = {}, .line = 0});
}

int run_runtime(const fs::path& program, const std::vector<std::string>& arguments,
                std::string* output) {
  std::vector<std::string> words = {kProgram};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::array<int, 2> pipe = {-1, -1};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  int error = 0;
  if (output != nullptr) {
    if (::pipe2(pipe.data(), O_CLOEXEC) != 0) error = errno;
    ::posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  }
  pid_t child = 0;
  if (error == 0) {
    error = ::posix_spawn(&child, program.c_str(), &actions, nullptr, argv.data(), environ);
  }
  ::posix_spawn_file_actions_destroy(&actions);
  if (pipe[1] >= 0) ::close(pipe[1]);
  if (error != 0) {
    if (pipe[0] >= 0) ::close(pipe[0]);
    throw InputError("cannot start it: " + std::generic_category().message(error),
                     {.file = program.string(), .pointer = {}, .line = 0});
  }
  if (output != nullptr) read_all(pipe[0], *output);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace reprise::cli
