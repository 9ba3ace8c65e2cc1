// This is the option that gives the power of a device: --power.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "output.h"
#include "rapl.h"
#include "reprise/io/json.h"
#include "reprise/model/power.h"

namespace reprise::cli {

inline CLI::Option* add_power_option(CLI::App& command, std::string& power) {
  return command
      .add_option("--power", power,
                  "what the device draws: static=20W,dynamic=45W,copy=60pJ/B, or a file, or "
                  "\"rapl\" to measure this machine")
      ->type_name("POWER");
}

// A power that was measured is also said, unless `quiet`.
inline std::optional<Power> power_of(const std::string& text, bool quiet) {
  if (text.empty()) return {};
  if (text == "rapl" || text.starts_with("rapl:")) {
    const Power power = measure_power(text == "rapl" ? kPowercap : text.substr(5));
    if (!quiet) {
      say("measured: static=" + format_power(power.static_mw) +
          ",dynamic=" + format_power(power.dynamic_mw));
    }
    return power;
  }
  if (text.find('=') != std::string::npos) return parse_watts(text);
  return load_power(text);
}

}  // namespace reprise::cli
