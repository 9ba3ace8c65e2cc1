// This header reads and writes files of named tensors in the format safetensors, which many tools
// read: eight bytes with the length of a header, the header as JSON, and the bytes of all tensors,
// one after the other.
//
// Files that are written here also have checksums, so that damage is noticed. They stand in the
// metadata under the key "crc32c": that of the header first, then that of each tensor in its order.
// Writing is atomic, as write_file() is.
//
// Source of the format: https://github.com/huggingface/safetensors, section "Format".
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reprise/model/units.h"

namespace reprise {

// A TensorEntry is a row of the header.
struct TensorEntry {
  std::string name;
  std::string type;  // a name of tensor_types()
  std::vector<int64_t> shape = {};
  Bytes offset = {};  // of the first byte, behind the header
  Bytes bytes = {};

  bool operator==(const TensorEntry&) const = default;
};

struct TensorTable {
  std::map<std::string, std::string> metadata = {};
  std::vector<TensorEntry> tensors = {};  // in the order of their bytes

  // Returns the tensor of this name, or null.
  const TensorEntry* find(std::string_view name) const;
  bool operator==(const TensorTable&) const = default;
};

struct TensorType {
  const char* name;  // "F32", for example
  int64_t bytes;     // of an element
};
// Returns the types of elements that these files have.
std::span<const TensorType> tensor_types();

// A tensor to write. Its elements lie one after the other, the last dimension first.
struct TensorBytes {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// Writes the whole file or leaves the old one as it is. The tensors are read twice and not copied.
// Throws InputError if a name is empty or comes twice, if a type is unknown, if a shape does not
// have the bytes of its data, and if the file cannot be written.
void write_tensors(const std::filesystem::path& path,
                   const std::map<std::string, std::string>& metadata,
                   const std::vector<TensorBytes>& tensors);

// Reads the header of a file from its text. `file_bytes` is the size of the whole file; `name`
// stands for the file in messages. Throws InputError if the text is no such header, or if the
// tensors do not fill the rest of the file.
TensorTable parse_tensor_table(std::string_view header, Bytes file_bytes,
                               const std::string& name = "<text>");

// Returns the size of any file and its CRC-32C in eight hexadecimal digits. Throws InputError if the
// file cannot be read.
std::pair<Bytes, std::string> file_checksum(const std::filesystem::path& path);

// A TensorFile is such a file, open for reading. If the file is replaced meanwhile, it reads the
// old one.
class TensorFile {
 public:
  // Reads the header. Throws InputError if the file cannot be read or is cut short.
  explicit TensorFile(const std::filesystem::path& path);
  ~TensorFile();
  TensorFile(TensorFile&&) noexcept;

  const TensorTable& table() const;
  // Reads the bytes of one tensor; `to` has exactly its size. Throws InputError if that fails.
  void read(const TensorEntry& tensor, std::span<std::byte> to) const;
  // Reads all bytes and compares the checksums. Throws InputError that names what is damaged, or
  // says that the file has no checksums. Memory: one MiB.
  void verify() const;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

}  // namespace reprise
