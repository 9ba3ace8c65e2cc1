// reprise doctor
#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "command.h"
#include "output.h"
#include "reprise/model/units.h"
#include "runtime_program.h"

namespace reprise::cli {

namespace {

struct Machine {
  std::string system;
  int cores = 1;                      // that this process may use
  Bytes memory;                       // of the machine
  std::optional<Bytes> memory_limit;  // of the container
  std::string simd;
};

// "max" and anything that is not a number mean no limit.
std::optional<Bytes> container_limit() {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    int64_t bytes = 0;
    if (file >> bytes) return Bytes(bytes);
  }
  return std::nullopt;
}

std::string simd() {
  std::string names;
  const auto add = [&](bool has, const char* name) {
    if (has) names += (names.empty() ? "" : " ") + std::string(name);
  };
#if defined(__x86_64__)
  __builtin_cpu_init();
  add(__builtin_cpu_supports("avx2") != 0, "avx2");
  add(__builtin_cpu_supports("fma") != 0, "fma");
  add(__builtin_cpu_supports("avx512f") != 0, "avx512f");
  add(__builtin_cpu_supports("avx512bw") != 0, "avx512bw");
  add(__builtin_cpu_supports("avx512vnni") != 0, "avx512vnni");
#elif defined(__aarch64__)
  add(true, "neon");
#endif
  return names.empty() ? "none known" : names;
}

Machine look_at_machine() {
  Machine machine;
  utsname names = {};
  if (::uname(&names) == 0) {
    machine.system = fmt::format("{} {} {}", names.sysname, names.release, names.machine);
  }
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof(cores), &cores) == 0) machine.cores = CPU_COUNT(&cores);
  machine.memory = Bytes(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
  machine.memory_limit = container_limit();
  if (machine.memory_limit && *machine.memory_limit >= machine.memory) machine.memory_limit.reset();
  machine.simd = simd();
  return machine;
}

std::string as_json(const Machine& machine, const std::optional<std::filesystem::path>& runtime) {
  nlohmann::ordered_json json;
  json["version"] = REPRISE_VERSION;
  json["compiler"] = __VERSION__;
  json["system"] = machine.system;
  json["cores"] = machine.cores;
  json["memory_bytes"] = machine.memory.count();
  if (machine.memory_limit) json["memory_limit_bytes"] = machine.memory_limit->count();
  json["simd"] = machine.simd;
  json["runtime"] = nullptr;
  if (runtime) json["runtime"] = runtime->string();
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  return json.dump(2, ' ', false, kReplace) + "\n";
}

std::string as_text(const Machine& machine, const std::optional<std::filesystem::path>& runtime) {
  const std::string limit = machine.memory_limit ? fmt::format(", {} for this container",
                                                               format_bytes(*machine.memory_limit))
                                                 : "";
  return fmt::format(
      "reprise   {}\ncompiler  {}\nsystem    {}\ncores     {}\nmemory    {}{}\nsimd      {}\n"
      "runtime   {}\n",
      REPRISE_VERSION, __VERSION__, machine.system, machine.cores, format_bytes(machine.memory),
      limit, machine.simd,
      runtime ? printable(runtime->string())
              : "reprise-runtime was not found: train, profile and models are not there");
}

int run(bool json) {
  const Machine machine = look_at_machine();
  const auto runtime = find_runtime();
  print(json ? as_json(machine, runtime) : as_text(machine, runtime));
  if (json || !runtime) return kDone;
  print("\n");
  return run_runtime(*runtime, "doctor");
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("doctor", "what this program and this machine can do");
  command->add_flag("--json", *json, "as JSON, of this program only");
  command->footer("Example:\n  reprise doctor");
  command->callback([json, &action] { action = [json] { return run(*json); }; });
}

}  // namespace reprise::cli
