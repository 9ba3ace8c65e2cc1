#include "runtime/device/processor_name.h"

#include <fstream>

namespace reprise::runtime::internal::device {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return {};
}

}  // namespace reprise::runtime::internal::device
