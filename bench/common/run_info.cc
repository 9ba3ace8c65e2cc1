#include "run_info.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

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

std::string as_code_block(const std::string& command) {
  constexpr size_t kColumns = 98;  // without the mark of a line that goes on
  std::string text, line = "   ";
  std::istringstream words(command);
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > kColumns) {
      text += line + " \\\n";
      line = "     ";
    }
    line += " " + word;
  }
  return text + line + "\n";
}

}  // namespace reprise::bench
