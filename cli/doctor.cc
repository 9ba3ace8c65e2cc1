// This file has the command `reprise doctor`.
#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "command.h"
#include "output.h"
#include "reprise/model/errors.h"
#include "reprise/model/units.h"
#include "runtime_program.h"

namespace reprise::cli {

namespace {

struct ThisMachine {
  std::string system;
  int cores = 1;                      // cores that this process may use
  Bytes memory;                       // memory of the machine
  std::optional<Bytes> memory_limit;  // limit of the container
  std::string simd;
};

// "max" and any text that is not a number mean no limit.
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

ThisMachine look_at_machine() {
  ThisMachine machine;
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

// A Finding says what is wrong, and what to do about it.
struct Finding {
  std::string what, advice;
};

std::vector<Finding> look_around(const std::optional<std::filesystem::path>& runtime) {
  std::vector<Finding> findings;
  if (!runtime) {
    findings.push_back({"reprise-runtime was not found: train, profile and models are not there",
                        "build it with LibTorch: make setup && make, or cmake --preset release "
                        "-DREPRISE_BUILD_RUNTIME=ON && cmake --build --preset release"});
  }
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") == 0) {
    findings.push_back({"this processor has no AVX2", "everything works, LibTorch slowly"});
  }
#endif
  return findings;
}

std::string as_json(const ThisMachine& machine, const std::optional<std::filesystem::path>& runtime,
                    const std::vector<Finding>& findings, const std::string& of_runtime, int code) {
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
  json["findings"] = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    json["findings"].push_back({{"what", finding.what}, {"advice", finding.advice}});
  }
  // The runtime's report about itself; null if it reports nothing that can be read.
  json["libtorch"] = nlohmann::ordered_json::parse(of_runtime, nullptr, /*allow_exceptions=*/false);
  if (json["libtorch"].is_discarded()) json["libtorch"] = nullptr;
  json["well"] = code == kDone;
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  return json.dump(2, ' ', false, kReplace) + "\n";
}

std::string as_text(const ThisMachine& machine, const std::optional<std::filesystem::path>& runtime,
                    const std::vector<Finding>& findings) {
  const std::string limit = machine.memory_limit ? fmt::format(", {} for this container",
                                                               format_bytes(*machine.memory_limit))
                                                 : "";
  std::string text = fmt::format(
      "reprise    {}\ncompiler   {}\nsystem     {}\ncores      {}\nmemory     {}{}\nsimd       {}\n"
      "runtime    {}\n",
      REPRISE_VERSION, __VERSION__, machine.system, machine.cores, format_bytes(machine.memory),
      limit, machine.simd, runtime ? printable(runtime->string()) : "not found");
  for (const Finding& finding : findings) {
    text += fmt::format("\n- {}\n  {}\n", finding.what, finding.advice);
  }
  return text;
}

// `rest` goes to the runtime: the model to try, and its options.
int run_doctor(bool json, std::vector<std::string> rest) {
  const ThisMachine machine = look_at_machine();
  const auto runtime = find_runtime();
  if (!runtime && !rest.empty()) {
    throw InputError(
        "to try a model, doctor needs the program reprise-runtime, which was not found");
  }
  const std::vector<Finding> findings = look_around(runtime);
  rest.insert(rest.begin(), "doctor");
  if (json) {
    rest.emplace_back("--json");
    std::string output;
    const int code = runtime ? run_runtime(*runtime, rest, &output) : kDone;
    if (code == kBadInput) return code;  // the runtime has said why
    print(as_json(machine, runtime, findings, output, code));
    return code;
  }
  print(as_text(machine, runtime, findings));
  if (!runtime) return kDone;
  return run_runtime(*runtime, rest);
}

}  // namespace

void add_doctor(CLI::App& app, Handler& action) {
  CLI::App* command = app.add_subcommand("doctor", "what this program and this machine can do");
  struct DoctorArguments {
    std::string model, budget;
    bool json = false;
  };
  auto arguments = std::make_shared<DoctorArguments>();
  command->add_option("--model", arguments->model, "try a step of this one, see `reprise models`")
      ->type_name("NAME");
  command
      ->add_option("--budget", arguments->budget,
                   "of the planned steps (default: 70%, or what is possible)")
      ->type_name("BUDGET");
  command->add_flag("--json", arguments->json, "for machines");
  command->allow_extras();  // options of the model, which only the runtime knows
  command->footer(
      "Further options say what the model is, as for `reprise profile`: --input, --batch, ...\n\n"
      "Examples:\n  reprise doctor\n  reprise doctor --model gpt --input 2x64 --width 64 --layers "
      "2 --heads 2 --budget 90%");
  command->callback([command, arguments, &action] {
    std::vector<std::string> rest = command->remaining();
    for (const auto& [name, value] :
         {std::pair("--model", arguments->model), std::pair("--budget", arguments->budget)}) {
      if (!value.empty()) rest.insert(rest.end(), {name, value});
    }
    action = [arguments, rest] { return run_doctor(arguments->json, rest); };
  });
}

}  // namespace reprise::cli
