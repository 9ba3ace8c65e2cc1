#include "run_info.h"

#include <fmt/format.h>

#include <fstream>

namespace reprise::bench {

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

RunInfo run_info(const std::string& program, int argc, char** argv, const std::string& build) {
  std::string command = fmt::format("build/release/{}", program);
  for (int i = 1; i < argc; ++i) command += fmt::format(" {}", argv[i]);
  return {command, processor(), build};
}

}  // namespace reprise::bench
