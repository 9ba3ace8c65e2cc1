#include "run_info.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <vector>

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
  constexpr size_t kColumns = 98;  // without the backslash of a line that goes on
  std::vector<std::string> parts;  // an option and its value are one part
  std::istringstream words(command);
  for (std::string word; words >> word;) {
    const bool is_value = !parts.empty() && parts.back().starts_with('-') &&
                          parts.back().find(' ') == std::string::npos && !word.starts_with('-');
    if (is_value) {
      parts.back() += " " + word;
    } else {
      parts.push_back(word);
    }
  }
  std::string text, line = "   ";
  for (const std::string& part : parts) {
    if (line.size() + 1 + part.size() > kColumns) {
      text += line + " \\\n";
      line = "     ";
    }
    line += " " + part;
  }
  return text + line + "\n";
}

}  // namespace reprise::bench
