#include "report/html_table.h"

#include <algorithm>
#include <utility>

namespace reprise::report {

namespace {

const char* style(Align align) { return align == Align::kRight ? " class=\"n\"" : ""; }

}  // namespace

HtmlTable& HtmlTable::column(std::string heading, Align align) {
  headings_.push_back(std::move(heading));
  aligns_.push_back(align);
  return *this;
}

std::string HtmlTable::line(const std::vector<std::string>& cells) const {
  std::string text = "<tr>";
  for (size_t c = 0; c < headings_.size(); ++c) {
    const char* open = c == 0 ? "<th scope=\"row\"" : "<td";
    text += open + std::string(style(aligns_[c])) + ">";
    if (c < cells.size()) text += cells[c];
    text += c == 0 ? "</th>" : "</td>";
  }
  return text + "</tr>\n";
}

void HtmlTable::row(const std::vector<std::string>& cells) { body_ += line(cells); }
void HtmlTable::total(const std::vector<std::string>& cells) { foot_ += line(cells); }

std::string HtmlTable::take() {
  std::string text = "<div class=\"table\" tabindex=\"0\"><table>";
  if (!caption_.empty()) text += "<caption>" + caption_ + "</caption>";
  std::string heads;
  for (size_t c = 0; c < headings_.size(); ++c) {
    heads += "<th scope=\"col\"" + std::string(style(aligns_[c])) + ">" + headings_[c] + "</th>";
  }
  const bool named = std::any_of(headings_.begin(), headings_.end(),
                                 [](const std::string& heading) { return !heading.empty(); });
  if (named) text += "\n<thead><tr>" + heads + "</tr></thead>";
  text += "\n<tbody>\n" + body_ + "</tbody>";
  if (!foot_.empty()) text += "<tfoot>\n" + foot_ + "</tfoot>";
  return text + "</table></div>\n";
}

}  // namespace reprise::report
