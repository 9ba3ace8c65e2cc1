// Tables in HTML.
#pragma once

#include <string>
#include <vector>

#include "report/table.h"

namespace reprise::report {

// Cells and headings are markup: escaped() is the caller's. The first cell of a row is its heading.
class HtmlTable {
 public:
  explicit HtmlTable(std::string caption) : caption_(std::move(caption)) {}
  HtmlTable& column(std::string heading, Align align);
  void row(const std::vector<std::string>& cells);
  void total(const std::vector<std::string>& cells);  // below the others
  // In a box that scrolls when it is long.
  std::string take();

 private:
  std::string line(const std::vector<std::string>& cells) const;

  std::string caption_;
  std::vector<std::string> headings_;
  std::vector<Align> aligns_;
  std::string body_, foot_;
};

}  // namespace reprise::report
