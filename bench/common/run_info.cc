#include "run_info.h"

#include <fmt/format.h>
#include <stdio.h>

#include <ctime>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

namespace reprise::bench {
namespace {

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

// Returns what a command prints; nothing if it cannot be run.
std::string output_of(const char* command) {
  std::string text;
  FILE* pipe = popen(command, "r");
  if (pipe == nullptr) return text;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) text += static_cast<char>(c);
  pclose(pipe);
  return text;
}

std::string commit() {
  std::string text = output_of("git rev-parse --short=10 HEAD 2>/dev/null");
  if (text.empty()) return "unknown";
  text.pop_back();  // the end of the line
  // Documents are not measured, and the benchmark before this one may have just written a page.
  const char* changes = "git status --porcelain -uno ':/' ':(top,exclude)docs' 2>/dev/null";
  return output_of(changes).empty() ? text : text + " and changes";
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[32] = {};
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &parts);
  return text;
}

}  // namespace

RunInfo run_info(const std::string& program, int argc, char** argv, int threads,
                 const std::string& versions) {
  std::string command = fmt::format("build/release/{}", program);
  for (int i = 1; i < argc; ++i) command += fmt::format(" {}", argv[i]);
  if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  return {command, utc_now(), commit(), processor(), threads, versions};
}

std::string measured(const RunInfo& info) {
  return fmt::format("Measured on {} UTC with commit {}: {}, {} thread{}, {}", info.time,
                     info.commit, info.processor, info.threads, info.threads == 1 ? "" : "s",
                     info.versions);
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
