// This is the text of a saved state: what is in the file beside tensors (docs/formats.md,
// reprise.state). Values of other kinds than JSON's own are objects of one key: {"float": "0.1"},
// {"tensor": NAME}, {"tuple": [...]}.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/document.h"
#include "io/reader.h"
#include "io/writer.h"
#include "reprise/io/tensors.h"
#include "reprise/runtime/saved_state.h"

namespace reprise::runtime::internal::saved {

inline constexpr const char* kStateFormat = "reprise.state";
inline constexpr const char* kStateVersion = "1";
inline constexpr const char* kTextTensor = "state.json";  // a tensor of bytes

// Returns the metadata of a state that this program writes.
std::map<std::string, std::string> state_metadata();

// Write values and read them. A number is read as it was written, to the last bit.
void write_float(io::Writer& writer, double number);
void write_tensor_name(io::Writer& writer, const std::string& name);
double read_float(const io::Element& element);
// Returns the value of the only key of an object, or nothing if the element is no such object.
std::optional<io::Element> tagged(const io::Element& element, std::string_view tag);

void write_progress(io::Writer& writer, const Progress& progress);
Progress read_progress(io::Object& object);

// A StateFile is a file of a state whose bytes are those that were written.
class StateFile {
 public:
  // Throws InputError for a file that is no state, for another version, and for a damaged file.
  explicit StateFile(const std::filesystem::path& path);

  const TensorFile& tensors() const { return tensors_; }
  io::Object text() const { return io::Object(io::Element(document_, 0)); }
  // Returns the tensor that {"tensor": NAME} names. Throws InputError if there is none.
  const TensorEntry& tensor(const io::Element& element) const;
  [[noreturn]] void fail(const std::string& message) const;

 private:
  std::string checked_text() const;

  std::filesystem::path path_;
  TensorFile tensors_;
  io::Document document_;
};

}  // namespace reprise::runtime::internal::saved
