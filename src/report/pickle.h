// Writes Python's pickle format, protocol 2: lists, dictionaries, integers and text. It contains no
// opcode that could run anything.
//
// Only opcodes that PyTorch's viewer knows, too (torch/utils/viz/MemoryViz.js reads pickles by itself, of
// protocols 2 to 4).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::report {

class PickleWriter {
 public:
  PickleWriter();

  void integer(int64_t number);
  // What is not UTF-8 becomes U+FFFD. A text that was there before is referred to.
  void text(std::string_view content);

  // In between: a key, a value, a key, ...
  void open_dict();
  void close_dict();
  void key(std::string_view name) { text(name); }
  void field(std::string_view name, int64_t number);
  void field(std::string_view name, std::string_view content);

  // In between: elements, next() after each.
  void open_list();
  void next();
  void close_list();

  // Remembers the list or dictionary just closed, for refer().
  uint32_t remember();
  void refer(uint32_t remembered);

  std::string take();

 private:
  void little_endian(uint64_t number, size_t bytes);

  std::string out_;
  std::vector<size_t> lists_;  // elements since the last batch, of the lists that are open
  std::map<std::string, uint32_t, std::less<>> texts_;
  uint32_t remembered_ = 0;
};

}  // namespace reprise::report
