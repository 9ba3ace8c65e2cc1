// Writes the canonical form of a problem and hashes it.
#include <nettle/sha2.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "io/formats.h"
#include "reprise/io/json.h"

namespace reprise {
namespace io {

namespace {

// The depth is at most kMaxDepth, so that recursion is safe.
void append_canonical(std::string& out, const Document& document, uint32_t index);

void append_object(std::string& out, const Document& document, uint32_t index) {
  const Object object(Element(document, index));
  auto members = object.members();
  std::erase_if(members, [](const auto& member) { return is_extension_key(member.first); });
  std::sort(members.begin(), members.end());
  out += '{';
  for (size_t i = 0; i < members.size(); ++i) {
    if (i > 0) out += ',';
    append_json_string(out, members[i].first);
    out += ':';
    append_canonical(out, document, members[i].second);
  }
  out += '}';
}

void append_canonical(std::string& out, const Document& document, uint32_t index) {
  const Node& node = document.node(index);
  switch (document.type(index)) {
    case NodeType::kNull:
      out += "null";
      return;
    case NodeType::kBoolean:
      out += node.payload != 0 ? "true" : "false";
      return;
    case NodeType::kInteger:
    case NodeType::kNegative:
      out += std::to_string(node.payload);
      return;
    case NodeType::kTooLarge:
    case NodeType::kFraction:
      out += nlohmann::json(document.fraction(index)).dump();
      return;
    case NodeType::kString:
      append_json_string(out, document.text(index));
      return;
    case NodeType::kArray: {
      out += '[';
      uint32_t child = index + 1;
      for (uint32_t i = 0; i < node.length; ++i, child = document.node(child).end) {
        if (i > 0) out += ',';
        append_canonical(out, document, child);
      }
      out += ']';
      return;
    }
    case NodeType::kObject:
      append_object(out, document, index);
      return;
  }
}

}  // namespace

std::string canonical_text(const Element& root) {
  std::string text;
  append_canonical(text, root.document(), root.index());
  return text;
}

std::string sha256_hex(std::string_view bytes) {
  sha256_ctx context;
  sha256_init(&context);
  sha256_update(&context, bytes.size(), reinterpret_cast<const uint8_t*>(bytes.data()));
  std::array<uint8_t, SHA256_DIGEST_SIZE> digest;
  sha256_digest(&context, digest.size(), digest.data());
  std::string hex;
  for (const uint8_t byte : digest) {
    constexpr const char* kDigits = "0123456789abcdef";
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 0xF];
  }
  return hex;
}

}  // namespace io

std::string canonical_sha256(std::string_view json_text) {
  const io::Document document(json_text, "<text>");
  return io::sha256_hex(io::canonical_text({document, 0}));
}

std::string text_sha256(std::string_view bytes) { return io::sha256_hex(bytes); }

}  // namespace reprise
