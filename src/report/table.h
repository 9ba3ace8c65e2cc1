// Fixed-width tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::report {

enum class Align { kLeft, kRight };

class Table {
 public:
  // A column with an empty heading has none.
  Table& column(std::string heading, Align align);
  void row(std::vector<std::string> cells);
  // Indented by two spaces, two spaces between columns, no spaces at line ends.
  std::string text() const;

 private:
  std::vector<Align> aligns_;
  std::vector<std::string> headings_;
  std::vector<std::vector<std::string>> rows_;
};

// Columns on a terminal: code points, which is right for the names that occur in practice.
size_t display_width(std::string_view text);

// "+12.3 %", "-0.4 %", "0.0 %": how much more `part` is than `whole`. "-" if whole is 0.
std::string relative_change(int64_t part, int64_t whole);
// "1,234,567".
std::string grouped(int64_t number);
// "60.2 %". "-" if whole is 0.
std::string share(int64_t part, int64_t whole);

// Ids that differ in numbers only are one kind: of l0.up and of l17.up it is l#.up; of the captured
// operation 12:gelu it is gelu.
std::string without_numbers(std::string_view id);

}  // namespace reprise::report
