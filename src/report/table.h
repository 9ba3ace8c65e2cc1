// Table writes fixed-width tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::report {

enum class Align { kLeft, kRight };

class Table {
 public:
  // An empty heading means that the column has none.
  Table& column(std::string heading, Align align);
  void row(std::vector<std::string> cells);
  // Returns the table, indented by two spaces, with two spaces between columns and no spaces at
  // line ends.
  std::string text() const;

 private:
  std::vector<Align> aligns_;
  std::vector<std::string> headings_;
  std::vector<std::vector<std::string>> rows_;
};

// Returns the columns of the text on a terminal. It counts code points, which is right for the
// names that occur in practice.
size_t display_width(std::string_view text);

// Says how much more `part` is than `whole`: "+12.3 %", "-0.4 %", "0.0 %". "-" if whole is 0.
std::string relative_change(int64_t part, int64_t whole);
// Writes a number in groups: "1,234,567".
std::string grouped(int64_t number);
// Writes a share: "60.2 %". "-" if whole is 0.
std::string share(int64_t part, int64_t whole);

// Returns the kind of an id: ids that differ only in numbers are of one kind. The kind of l0.up and
// of l17.up is l#.up, and that of the captured operation 12:gelu is gelu.
std::string without_numbers(std::string_view id);

}  // namespace reprise::report
