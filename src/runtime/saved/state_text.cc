#include "runtime/saved/state_text.h"

#include <torch/version.h>

#include <array>
#include <charconv>

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::saved {

std::map<std::string, std::string> state_metadata() {
  return {{"format", kStateFormat},
          {"version", kStateVersion},
          {"writer", "reprise " REPRISE_VERSION ", C++, LibTorch " TORCH_VERSION}};
}

void write_float(io::Writer& writer, double number) {
  std::array<char, 32> text = {};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  writer.open_object(io::Layout::kInline)
      .field("float", std::string_view(text.data(), static_cast<size_t>(end - text.data())))
      .close();
}

void write_tensor_name(io::Writer& writer, const std::string& name) {
  writer.open_object(io::Layout::kInline).field("tensor", name).close();
}

std::optional<io::Element> tagged(const io::Element& element, std::string_view tag) {
  const io::Document& document = element.document();
  if (document.type(element.index()) != io::NodeType::kObject) return std::nullopt;
  const io::Object object(element);
  if (object.members().size() != 1 || object.members()[0].first != tag) return std::nullopt;
  return io::Element(document, object.members()[0].second);
}

double read_float(const io::Element& element) {
  if (const auto inside = tagged(element, "float")) {
    const std::string_view text = inside->text();
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc() && end == text.data() + text.size()) return number;
    inside->fail("is no number");
  }
  return static_cast<double>(element.integer());
}

void write_progress(io::Writer& writer, const Progress& progress) {
  if (progress.step < 0 || progress.position < 0) {
    throw InputError("step and position of a saved state are numbers from 0 on");
  }
  writer.field("step", progress.step).field("position", progress.position);
  writer.field("plan", progress.plan).key("notes").open_object();
  for (const auto& [name, text] : progress.notes) writer.field(name, text);
  writer.close();
}

Progress read_progress(io::Object& object) {
  Progress progress;
  progress.step = object.required("step").integer();
  progress.position = object.required("position").integer();
  progress.plan = object.required("plan").string();
  const io::Object notes(object.required("notes"));
  for (const auto& [name, index] : notes.members()) {
    progress.notes.emplace(name, io::Element(object.element().document(), index).string());
  }
  return progress;
}

StateFile::StateFile(const std::filesystem::path& path)
    : path_(path), tensors_(path), document_(checked_text(), path.string()) {}

std::string StateFile::checked_text() const {
  const TensorTable& table = tensors_.table();
  const auto metadata = [&](const char* key) {
    const auto found = table.metadata.find(key);
    return found == table.metadata.end() ? std::string() : found->second;
  };
  if (metadata("format") != kStateFormat) {
    fail("is no saved state: its metadata does not name the format reprise.state");
  }
  if (metadata("version") != kStateVersion) {
    fail("is a state of version " + io::quoted(metadata("version")) +
         ", and this version of Reprise reads version " + kStateVersion + "; it was written by " +
         io::quoted(metadata("writer")));
  }
  tensors_.verify();
  const TensorEntry* text = table.find(kTextTensor);
  if (text == nullptr || text->type != "U8") fail("is no saved state: it has no text state.json");
  std::string content(static_cast<size_t>(text->bytes.count()), '\0');
  tensors_.read(*text, std::as_writable_bytes(std::span(content)));
  return content;
}

const TensorEntry& StateFile::tensor(const io::Element& element) const {
  const auto name = tagged(element, "tensor");
  if (!name) element.fail("must name a tensor");
  const TensorEntry* found = tensors_.table().find(name->text());
  if (found == nullptr) name->fail("the file has no tensor " + io::quoted(name->text()));
  return *found;
}

void StateFile::fail(const std::string& message) const {
  throw InputError(message, {.file = path_.string(), .pointer = {}, .line = 0});
}

}  // namespace reprise::runtime::internal::saved
