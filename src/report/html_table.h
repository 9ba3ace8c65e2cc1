// HtmlTable writes tables in HTML.
#pragma once

#include <string>
#include <vector>

#include "report/table.h"

namespace reprise::report {

// Cells and headings are markup: the caller escapes text with escaped(). The first cell of a row is
// the heading of the row. An empty caption has no line, and so have headings that are all empty.
class HtmlTable {
 public:
  explicit HtmlTable(std::string caption) : caption_(std::move(caption)) {}
  HtmlTable& column(std::string heading, Align align);
  void row(const std::vector<std::string>& cells);
  void total(const std::vector<std::string>& cells);  // a row below the others
  // Returns the table, in a box that scrolls if the table is long.
  std::string take();

 private:
  std::string line(const std::vector<std::string>& cells) const;

  std::string caption_;
  std::vector<std::string> headings_;
  std::vector<Align> aligns_;
  std::string body_, foot_;
};

}  // namespace reprise::report
