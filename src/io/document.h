// A Document is a parsed JSON text in which every element knows its line.
//
// The SAX parser of nlohmann::json reads the text once, into a flat tape. The children of an
// element follow it; a member of an object is a key and then its value. {"a": [1, 2]} becomes
//
//   0 object   end = 5
//   1 string   end = 2   "a"
//   2 array    end = 5
//   3 integer  end = 4   1
//   4 integer  end = 5   2
//
// An element takes twenty-four bytes, so that the limits below bound the memory that a hostile file
// can take. JSON pointers are worked out from the tape when an error needs one, never before.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/model/errors.h"

namespace reprise::io {

inline constexpr size_t kMaxTextBytes = size_t{1} << 30;
inline constexpr size_t kMaxDepth = 64;
inline constexpr size_t kMaxElements = 10'000'000;  // in one array or object
inline constexpr size_t kMaxNodes = 64'000'000;     // in one text
inline constexpr size_t kMaxStringBytes = size_t{1} << 20;
inline constexpr size_t kMaxKeyBytes = 4096;

enum class NodeType : uint8_t {
  kNull,
  kBoolean,
  kInteger,   // an integer in 0..2^63-1
  kNegative,  // a number with a minus sign
  kTooLarge,  // an integer above 2^63-1
  kFraction,  // a number with a point or an exponent
  kString,
  kArray,
  kObject,
};

struct Node {
  int64_t payload = 0;  // the boolean, the integer, the string's position, or the double's bits
  uint32_t length = 0;  // the bytes of a string, the elements of an array, the members of an object
  uint32_t end = 0;     // the index after the last node of this subtree
  uint32_t line : 28 = 0;
  uint32_t type : 4 = 0;
};

class Document {
 public:
  // Throws InputError for wrong syntax, wrong encoding, a duplicate key, and a text above a limit.
  // `name` stands for the file.
  // With `up_to`, the document ends behind the first member of the root that has this key and a text.
  // Nothing after it is read.
  Document(std::string_view text, std::string name, std::string_view up_to = {});

  const Node& node(uint32_t index) const { return nodes_[index]; }
  NodeType type(uint32_t index) const { return static_cast<NodeType>(nodes_[index].type); }
  std::string_view text(uint32_t index) const {
    return std::string_view(strings_).substr(static_cast<size_t>(nodes_[index].payload),
                                             nodes_[index].length);
  }
  double fraction(uint32_t index) const;
  const std::string& name() const { return name_; }

  Location locate(uint32_t index) const;
  // Returns the element that `pointer`, relative to `base`, leads to, or its nearest ancestor that
  // exists.
  uint32_t resolve(uint32_t base, std::string_view pointer) const;

  // Throws InputError with the location of the element.
  [[noreturn]] void fail(uint32_t index, const std::string& message) const;

 private:
  friend class TapeBuilder;
  std::string name_;
  std::vector<Node> nodes_;
  std::string strings_;
};

// Returns a JSON string for messages. It is escaped, and cut when it is long.
std::string quoted(std::string_view text);

}  // namespace reprise::io
