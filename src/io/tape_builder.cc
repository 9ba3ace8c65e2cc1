#include "io/tape_builder.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

namespace reprise::io {

namespace {

// Counts lines as the lexer consumes characters. The count is the line of the last character
// consumed. A newline still belongs to the line that it ends, because the lexer looks one character
// past a number.
struct LineCounter {
  int64_t line = 1;
  bool after_newline = false;

  void consume(char c) {
    if (after_newline) ++line;
    after_newline = c == '\n';
  }
};

class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, LineCounter* counter) : at_(at), counter_(counter) {}
  const char& operator*() const { return *at_; }
  CountingIterator& operator++() {
    counter_->consume(*at_++);
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator old = *this;
    ++*this;
    return old;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  LineCounter* counter_;
};

// Hands the events of nlohmann's SAX interface on to a TapeBuilder.
class SaxEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  SaxEvents(TapeBuilder& builder, const LineCounter& counter)
      : builder_(builder), counter_(counter) {}

  bool null() override { return literal(NodeType::kNull, 0); }
  bool boolean(bool value) override { return literal(NodeType::kBoolean, value ? 1 : 0); }
  bool number_integer(number_integer_t value) override {
    return literal(NodeType::kNegative, value);  // The parser calls this only after a minus sign.
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return literal(NodeType::kTooLarge, std::bit_cast<int64_t>(static_cast<double>(value)));
    }
    return literal(NodeType::kInteger, static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t& token) override {
    const bool integer = token.find_first_of(".eE") == std::string::npos;
    return literal(integer ? NodeType::kTooLarge : NodeType::kFraction,
                   std::bit_cast<int64_t>(value));
  }
  bool string(string_t& value) override {
    return builder_.string(value, counter_.line);
  }
  bool binary(binary_t&) override { return false; }  // JSON text has no binary values.
  bool start_object(size_t) override { return open(NodeType::kObject); }
  bool key(string_t& value) override {
    builder_.key(value, counter_.line);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(NodeType::kArray); }
  bool end_array() override { return close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    builder_.syntax_error(error.what(), counter_.line);
  }

 private:
  bool literal(NodeType type, int64_t payload) {
    builder_.literal(type, payload, counter_.line);
    return true;
  }
  bool open(NodeType type) {
    builder_.open(type, counter_.line);
    return true;
  }
  bool close() {
    builder_.close();
    return true;
  }

  TapeBuilder& builder_;
  const LineCounter& counter_;
};

}  // namespace

void TapeBuilder::build() {
  if (text_.size() > kMaxTextBytes) {
    throw InputError("is larger than " + std::to_string(kMaxTextBytes) + " bytes",
                     {.file = document_.name_, .pointer = {}, .line = 0});
  }
  LineCounter counter;
  SaxEvents events(*this, counter);
  nlohmann::json::sax_parse(CountingIterator(text_.data(), &counter),
                            CountingIterator(text_.data() + text_.size(), &counter), &events);
  while (!open_.empty()) close();
  // The parser takes a byte of zero behind the document for the end of the text.
  if (const size_t zero = text_.find('\0'); zero != std::string_view::npos) {
    const auto lines = std::count(text_.begin(), text_.begin() + static_cast<int64_t>(zero), '\n');
    throw InputError("has a byte of zero, which no JSON has",
                     {.file = document_.name_, .pointer = {}, .line = 1 + static_cast<int>(lines)});
  }
}

void TapeBuilder::literal(NodeType type, int64_t payload, int64_t line) {
  count_element();
  push(type, payload, 0, line);
}

bool TapeBuilder::string(std::string_view value, int64_t line) {
  count_element();
  push_string(value, line);
  if (value.size() > kMaxStringBytes) {
    document_.fail(static_cast<uint32_t>(document_.nodes_.size() - 1),
                   "a string is longer than " + std::to_string(kMaxStringBytes) + " bytes");
  }
  const bool is_member = open_.size() == 1 && document_.type(open_.back()) == NodeType::kObject;
  if (up_to_.empty() || !is_member) return true;
  return document_.text(static_cast<uint32_t>(document_.nodes_.size() - 2)) != up_to_;
}

void TapeBuilder::key(std::string_view value, int64_t line) {
  if (value.size() > kMaxKeyBytes) {
    Location location = document_.locate(open_.back());
    location.line = line;
    throw InputError("a key is longer than " + std::to_string(kMaxKeyBytes) + " bytes", location);
  }
  push_string(value, line);
}

void TapeBuilder::open(NodeType type, int64_t line) {
  count_element();
  push(type, 0, 0, line);
  const auto index = static_cast<uint32_t>(document_.nodes_.size() - 1);
  document_.nodes_[index].end = std::numeric_limits<uint32_t>::max();
  if (open_.size() >= kMaxDepth) {
    document_.fail(index, "nested deeper than " + std::to_string(kMaxDepth) + " levels");
  }
  open_.push_back(index);
}

void TapeBuilder::close() {
  const uint32_t index = open_.back();
  document_.nodes_[index].end = static_cast<uint32_t>(document_.nodes_.size());
  if (document_.type(index) == NodeType::kObject) check_duplicate_keys(index);
  open_.pop_back();
}

void TapeBuilder::syntax_error(std::string_view message, int64_t line) const {
  // The parser says "[json.exception.parse_error.101] parse error at line 3, column 7: syntax error
  // ...". Only the last part is news. It quotes the text that was read, which may be long or not
  // printable.
  if (const size_t column = message.find(": "); column != std::string_view::npos) {
    message.remove_prefix(column + 2);
  }
  constexpr size_t kShown = 240;
  std::string shown(message.substr(0, kShown));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  if (message.size() > kShown) shown += "...";
  Location location{.file = document_.name_, .pointer = {}, .line = line};
  if (!open_.empty()) {
    location.pointer = document_.locate(static_cast<uint32_t>(document_.nodes_.size() - 1)).pointer;
  }
  const bool empty = text_.find_first_not_of(" \t\r\n") == std::string_view::npos;
  throw InputError(empty ? "is empty; a JSON document is expected" : "not valid JSON: " + shown,
                   location);
}

void TapeBuilder::push(NodeType type, int64_t payload, size_t length, int64_t line) {
  std::vector<Node>& nodes = document_.nodes_;
  if (nodes.size() >= kMaxNodes) {
    throw InputError("has more than " + std::to_string(kMaxNodes) + " JSON elements",
                     {.file = document_.name_, .pointer = {}, .line = line});
  }
  Node node;
  node.payload = payload;
  node.length = static_cast<uint32_t>(length);
  node.end = static_cast<uint32_t>(nodes.size() + 1);
  node.line = static_cast<uint32_t>(std::min<int64_t>(line, (1 << 28) - 1)) & ((1u << 28) - 1);
  node.type = static_cast<uint32_t>(type) & 0xF;
  nodes.push_back(node);
}

void TapeBuilder::push_string(std::string_view value, int64_t line) {
  push(NodeType::kString, static_cast<int64_t>(document_.strings_.size()), value.size(), line);
  document_.strings_ += value;
}

void TapeBuilder::count_element() {
  if (open_.empty()) return;
  Node& container = document_.nodes_[open_.back()];
  if (container.length >= kMaxElements) {
    document_.fail(open_.back(), "has more than " + std::to_string(kMaxElements) + " elements");
  }
  ++container.length;
}

void TapeBuilder::check_duplicate_keys(uint32_t object) const {
  std::vector<std::pair<std::string_view, uint32_t>> keys;
  keys.reserve(document_.nodes_[object].length);
  const uint32_t end = document_.nodes_[object].end;
  for (uint32_t key = object + 1; key < end; key = document_.nodes_[key + 1].end) {
    keys.emplace_back(document_.text(key), key);
  }
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(
      keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != keys.end()) {
    const uint32_t second = std::next(twice)->second;
    document_.fail(second, "the key " + quoted(twice->first) + " appears twice");
  }
}

}  // namespace reprise::io
