// This is a pickle writer for Python's format, protocol 2: lists, dictionaries, integers and text.
// The result contains no opcode that could run code.
//
// The writer uses only opcodes that PyTorch's viewer knows, too: torch/utils/viz/MemoryViz.js reads
// pickles of protocols 2 to 4 by itself.
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
  // Bytes that are not UTF-8 become U+FFFD. A repeated text becomes a reference to its first place.
  void text(std::string_view content);

  // The calls between open and close are: a key, a value, a key, ...
  void open_dict();
  void close_dict();
  void key(std::string_view name) { text(name); }
  void field(std::string_view name, int64_t number);
  void field(std::string_view name, std::string_view content);

  // The calls between open and close are the elements, with next() after each.
  void open_list();
  void next();
  void close_list();

  // Remembers the list or dictionary that was just closed, for refer().
  uint32_t remember();
  void refer(uint32_t remembered);

  std::string take();

 private:
  void little_endian(uint64_t number, size_t bytes);

  std::string out_;
  std::vector<size_t> lists_;  // elements since the last batch, by open list
  std::map<std::string, uint32_t, std::less<>> texts_;
  uint32_t remembered_ = 0;
};

}  // namespace reprise::report
