#include "io/writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reprise/model/errors.h"

namespace reprise::io {

Writer& Writer::open(char begin, char end, Layout layout) {
  separate();
  const bool inside_inline = !open_.empty() && !open_.back().lines;
  text_ += begin;
  open_.push_back({end, layout == Layout::kLines && !inside_inline && !canonical_, true});
  return *this;
}

Writer& Writer::close() {
  Container container = std::move(open_.back());
  open_.pop_back();
  sort_members(container.members);
  if (container.lines && !container.empty) new_line();
  text_ += container.close;
  return *this;
}

Writer& Writer::key(std::string_view name) {
  separate();
  if (canonical_) open_.back().members.push_back({text_.size(), name.size()});
  append_json_string(text_, name);
  text_ += canonical_ ? ":" : ": ";
  after_key_ = true;
  return *this;
}

Writer& Writer::value(std::string_view text) {
  separate();
  append_json_string(text_, text);
  return *this;
}

Writer& Writer::value(bool boolean) {
  separate();
  text_ += boolean ? "true" : "false";
  return *this;
}

Writer& Writer::value(int64_t number) {
  separate();
  text_ += std::to_string(number);
  return *this;
}

std::string Writer::take() {
  if (!canonical_) text_ += '\n';
  return std::move(text_);
}

Writer& Writer::count(int64_t number) {
  if (number < 0) {
    throw InputError("cannot write " + std::to_string(number) +
                     ": sizes, times and counts are integers >= 0");
  }
  return value(number);
}

void Writer::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (open_.empty()) return;
  Container& container = open_.back();
  if (!container.empty && container.members.empty()) {
    text_ += container.lines || canonical_ ? "," : ", ";
  }
  container.empty = false;
  if (container.lines) new_line();
}

void Writer::new_line() {
  text_ += '\n';
  text_.append(2 * open_.size(), ' ');
}

void Writer::sort_members(const std::vector<Member>& members) {
  if (members.empty()) return;
  const size_t begin = members.front().begin;
  const std::string written = text_.substr(begin);
  std::vector<std::pair<std::string_view, std::string_view>> parts;  // a key, and its whole member
  for (size_t m = 0; m < members.size(); ++m) {
    const size_t end = m + 1 < members.size() ? members[m + 1].begin : text_.size();
    const std::string_view part = std::string_view(written).substr(members[m].begin - begin,
                                                                   end - members[m].begin);
    parts.emplace_back(part.substr(1, members[m].key_size), part);
  }
  std::sort(parts.begin(), parts.end());
  text_.resize(begin);
  for (const auto& [key, part] : parts) {
    if (text_.size() > begin) text_ += ',';
    text_ += part;
  }
}

void append_json_string(std::string& out, std::string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
  });
  if (plain) {
    out += '"';
    out += text;
    out += '"';
    return;
  }
  try {
    out += nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw InputError("cannot write a name that is not valid UTF-8");
  }
}

}  // namespace reprise::io
