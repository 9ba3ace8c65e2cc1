#include "report/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace reprise::report {

namespace {

void append_line(std::string& out, const std::vector<std::string>& cells,
                 const std::vector<Align>& aligns, const std::vector<size_t>& widths) {
  std::string line;
  for (size_t c = 0; c < cells.size(); ++c) {
    const std::string padding(widths[c] - display_width(cells[c]), ' ');
    line += "  ";
    line += aligns[c] == Align::kLeft ? cells[c] + padding : padding + cells[c];
  }
  line.erase(line.find_last_not_of(' ') + 1);
  out += line + '\n';
}

}  // namespace

Table& Table::column(std::string heading, Align align) {
  headings_.push_back(std::move(heading));
  aligns_.push_back(align);
  return *this;
}

void Table::row(std::vector<std::string> cells) {
  cells.resize(headings_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<size_t> widths;
  for (const std::string& heading : headings_) widths.push_back(display_width(heading));
  for (const auto& cells : rows_) {
    for (size_t c = 0; c < cells.size(); ++c) {
      widths[c] = std::max(widths[c], display_width(cells[c]));
    }
  }
  std::string out;
  const bool any_heading = std::any_of(headings_.begin(), headings_.end(),
                                       [](const std::string& heading) { return !heading.empty(); });
  if (any_heading) append_line(out, headings_, aligns_, widths);
  for (const auto& cells : rows_) append_line(out, cells, aligns_, widths);
  return out;
}

size_t display_width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // not inside a UTF-8 sequence
  }));
}

std::string without_numbers(std::string_view id) {
  const size_t name = id.find_first_not_of("0123456789");
  if (name != 0 && name < id.size() && id[name] == ':') id.remove_prefix(name + 1);
  std::string kind;
  for (const char c : id) {
    if (c < '0' || c > '9') {
      kind += c;
    } else if (!kind.ends_with('#')) {
      kind += '#';
    }
  }
  return kind;
}

std::string relative_change(int64_t part, int64_t whole) {
  if (whole == 0) return "-";
  const double percent =
      100.0 * (static_cast<double>(part) - static_cast<double>(whole)) / static_cast<double>(whole);
  return part == whole ? "0.0 %" : fmt::format("{:+.1f} %", percent);
}

std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  const size_t first = number < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string share(int64_t part, int64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace reprise::report
