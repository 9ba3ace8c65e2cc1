#include "reprise/model/errors.h"

namespace reprise {

std::string format_location(const Location& location, const std::string& message) {
  std::string text;
  if (!location.file.empty()) text += location.file + ":";
  if (location.line > 0) {
    text += (text.empty() ? "line " : "") + std::to_string(location.line) + ":";
  }
  if (!text.empty()) text += " ";
  if (!location.pointer.empty()) text += "at " + location.pointer + ": ";
  return text + message;
}

InputError::InputError(const std::string& message, Location where)
    : Error(format_location(where, message)), where_(std::move(where)) {}

}  // namespace reprise
