// Reads and writes files of tensors in the format safetensors.
#include "reprise/io/tensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <set>
#include <utility>

#include "io/crc32c.h"
#include "io/file_access.h"
#include "io/reader.h"
#include "io/writer.h"
#include "reprise/model/errors.h"

namespace reprise {
namespace io {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr const char* kMetadata = "__metadata__";
constexpr const char* kChecksums = "crc32c";
constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeaderBytes = 100'000'000;  // the limit of other readers of the format
constexpr size_t kAlignment = 8;
constexpr size_t kReadAtOnce = size_t{1} << 20;

constexpr std::array<TensorType, 18> kTypes = {{{"F64", 8},
                                                {"F32", 4},
                                                {"F16", 2},
                                                {"BF16", 2},
                                                {"I64", 8},
                                                {"I32", 4},
                                                {"I16", 2},
                                                {"I8", 1},
                                                {"U64", 8},
                                                {"U32", 4},
                                                {"U16", 2},
                                                {"U8", 1},
                                                {"BOOL", 1},
                                                {"C64", 8},
                                                {"F8_E4M3", 1},
                                                {"F8_E5M2", 1},
                                                {"F8_E8M0", 1},
                                                {"F8_E4M3FNUZ", 1}}};

// Returns the bytes of an element, or 0 if the type is unknown.
int64_t element_bytes(std::string_view type) {
  for (const TensorType& each : kTypes) {
    if (each.name == type) return each.bytes;
  }
  return 0;
}

// Returns the bytes of a tensor, or -1 if the number is too large.
int64_t bytes_of(const std::vector<int64_t>& shape, int64_t element) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t bytes = element;
  for (const int64_t size : shape) {
    if (size < 0 || bytes > kMost / size) return -1;
    bytes *= size;
  }
  return bytes;
}

std::string hex(uint32_t number) {
  std::array<char, 9> text = {};
  std::snprintf(text.data(), text.size(), "%08x", number);
  return text.data();
}

uint32_t checksum(std::string_view text, uint32_t before = 0) {
  return crc32c(std::as_bytes(std::span(text)), before);
}

// Returns the checksum of all that a header says, the sums of the tensors included.
uint32_t header_checksum(const TensorTable& table, const std::vector<uint32_t>& sums) {
  uint32_t sum = 0;
  const auto add = [&](std::string_view text) {
    sum = checksum(text, sum);
    sum = checksum(std::string_view("\0", 1), sum);
  };
  for (const auto& [key, text] : table.metadata) {
    if (key == kChecksums) continue;
    add(key);
    add(text);
  }
  for (size_t i = 0; i < table.tensors.size(); ++i) {
    const TensorEntry& tensor = table.tensors[i];
    add(tensor.name);
    add(tensor.type);
    for (const int64_t size : tensor.shape) add(std::to_string(size));
    add(std::to_string(tensor.offset.count()) + "+" + std::to_string(tensor.bytes.count()));
    add(hex(sums[i]));
  }
  return sum;
}

// Returns the header with its length in front, padded so that the tensors are aligned.
std::string header_of(const TensorTable& table) {
  Writer writer;
  writer.open_object(Layout::kInline);
  writer.key(kMetadata).open_object(Layout::kInline);
  for (const auto& [key, text] : table.metadata) writer.field(key, text);
  writer.close();
  for (const TensorEntry& tensor : table.tensors) {
    writer.key(tensor.name).open_object(Layout::kInline).field("dtype", tensor.type);
    writer.key("shape").open_array(Layout::kInline);
    for (const int64_t size : tensor.shape) writer.value(size);
    writer.close().key("data_offsets").open_array(Layout::kInline);
    writer.value(tensor.offset.count()).value((tensor.offset + tensor.bytes).count());
    writer.close().close();
  }
  writer.close();
  std::string header = writer.take();
  header.resize((header.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  std::string length(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  }
  return length + header;
}

// Throws InputError where a tensor could not be read again.
void check_tensor(const TensorBytes& tensor) {
  const std::string where = "tensor " + io::quoted(tensor.name) + ": ";
  if (tensor.name.empty()) throw InputError("a tensor has no name");
  if (tensor.name == kMetadata) throw InputError(where + "no tensor can have this name");
  if (tensor.name.size() > kMaxKeyBytes) throw InputError(where + "the name is too long");
  const int64_t element = element_bytes(tensor.type);
  if (element == 0) throw InputError(where + "files have no type " + io::quoted(tensor.type));
  if (bytes_of(tensor.shape, element) != static_cast<int64_t>(tensor.data.size())) {
    throw InputError(where + "its shape does not have " + std::to_string(tensor.data.size()) +
                     " bytes");
  }
}

TensorEntry read_entry(std::string_view name, const Element& element) {
  Object object(element);
  TensorEntry tensor{.name = std::string(name), .type = object.required("dtype").string()};
  const int64_t each = element_bytes(tensor.type);
  if (each == 0) object.required("dtype").fail("unknown type " + io::quoted(tensor.type));
  const Element shape = object.required("shape"), offsets = object.required("data_offsets");
  shape.for_each([&](const Element& size) { tensor.shape.push_back(size.integer()); });
  const std::vector<Element> ends = offsets.elements();
  if (ends.size() != 2) offsets.fail("must have two numbers");
  tensor.offset = ends[0].bytes();
  if (ends[1].bytes() < tensor.offset) offsets.fail("the end is before the beginning");
  tensor.bytes = ends[1].bytes() - tensor.offset;
  if (bytes_of(tensor.shape, each) != tensor.bytes.count()) {
    offsets.fail("the shape does not have " + std::to_string(tensor.bytes.count()) + " bytes");
  }
  object.finish();
  return tensor;
}

// Returns the checksums of the file: that of the header, then one a tensor.
std::vector<uint32_t> read_checksums(const TensorTable& table, const std::filesystem::path& path) {
  const auto found = table.metadata.find(kChecksums);
  if (found == table.metadata.end()) {
    fail_file(path, "has no checksums, so it was not written by Reprise");
  }
  std::vector<uint32_t> sums;
  const std::string& text = found->second;
  for (size_t at = 0; at < text.size(); at += 9) {
    const std::string word = text.substr(at, 8);
    if (word.find_first_not_of("0123456789abcdef") != std::string::npos || word.size() != 8) break;
    sums.push_back(static_cast<uint32_t>(std::stoul(word, nullptr, 16)));
  }
  if (sums.size() != table.tensors.size() + 1) fail_file(path, "is damaged: its checksums");
  return sums;
}

// Reads up to `to.size()` bytes from this place of a file. Returns their number.
size_t read_at(const FileDescriptor& file, const std::filesystem::path& path, int64_t at,
               std::span<std::byte> to) {
  size_t filled = 0;
  while (filled < to.size()) {
    const ssize_t count = ::pread(file.get(), to.data() + filled, to.size() - filled,
                                  static_cast<off_t>(at) + static_cast<off_t>(filled));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_file(path, "cannot read", errno);
    if (count == 0) break;
    filled += static_cast<size_t>(count);
  }
  return filled;
}

}  // namespace
}  // namespace io

struct TensorFile::Open {
  std::filesystem::path path;
  io::FileDescriptor file;
  Bytes data;  // the place of the first tensor in the file
  TensorTable table;

  size_t read(int64_t at, std::span<std::byte> to) const { return io::read_at(file, path, at, to); }
};

const TensorEntry* TensorTable::find(std::string_view name) const {
  for (const TensorEntry& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

std::span<const TensorType> tensor_types() { return io::kTypes; }

void write_tensors(const std::filesystem::path& path,
                   const std::map<std::string, std::string>& metadata,
                   const std::vector<TensorBytes>& tensors) {
  std::vector<const TensorBytes*> order;
  std::set<std::string_view> names;
  for (const TensorBytes& tensor : tensors) {
    io::check_tensor(tensor);
    if (!names.insert(tensor.name).second) {
      throw InputError("tensor " + io::quoted(tensor.name) + " is there twice");
    }
    order.push_back(&tensor);
  }
  // Types of large elements come first, so that each tensor is aligned to its elements.
  std::stable_sort(order.begin(), order.end(), [](const TensorBytes* a, const TensorBytes* b) {
    return io::element_bytes(a->type) > io::element_bytes(b->type);
  });
  TensorTable table{.metadata = metadata};
  std::vector<uint32_t> sums;
  std::vector<std::string_view> pieces(1);
  Bytes offset;
  for (const TensorBytes* tensor : order) {
    const Bytes bytes(static_cast<int64_t>(tensor->data.size()));
    table.tensors.push_back({tensor->name, tensor->type, tensor->shape, offset, bytes});
    offset += bytes;
    sums.push_back(io::crc32c(tensor->data));
    pieces.emplace_back(reinterpret_cast<const char*>(tensor->data.data()), tensor->data.size());
  }
  std::string words = io::hex(io::header_checksum(table, sums));
  for (const uint32_t sum : sums) words += " " + io::hex(sum);
  table.metadata[io::kChecksums] = words;
  for (const auto& [key, text] : table.metadata) {
    if (key.size() > io::kMaxKeyBytes || text.size() > io::kMaxStringBytes) {
      throw InputError("the metadata " + io::quoted(key) + " is too long for a file");
    }
  }
  const std::string header = io::header_of(table);
  if (header.size() > io::kMaxHeaderBytes) {
    throw InputError("there are too many tensors for one file: the header has more than 100 MB");
  }
  pieces[0] = header;
  io::write_pieces(path, pieces);
}

TensorTable parse_tensor_table(std::string_view header, Bytes file_bytes, const std::string& name) {
  const io::Document document(header, name);
  const io::Object object(io::Element(document, 0));
  TensorTable table;
  for (const auto& [key, index] : object.members()) {
    const io::Element element(document, index);
    if (key != io::kMetadata) {
      table.tensors.push_back(io::read_entry(key, element));
      continue;
    }
    const io::Object metadata(element);
    for (const auto& [word, at] : metadata.members()) {
      table.metadata.emplace(word, io::Element(document, at).string());
    }
  }
  std::stable_sort(table.tensors.begin(), table.tensors.end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
                     return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
                   });
  Bytes end;
  for (const TensorEntry& tensor : table.tensors) {
    if (tensor.offset != end) {
      object.element().fail("tensor " + io::quoted(tensor.name) +
                            " does not begin where the one before it ends");
    }
    end += tensor.bytes;
  }
  const Bytes before(static_cast<int64_t>(io::kLengthBytes + header.size()));
  if (file_bytes != before + end) {
    object.element().fail("the file has " + std::to_string(file_bytes.count()) + " bytes, and " +
                          std::to_string((before + end).count()) + " belong to it");
  }
  return table;
}

std::pair<Bytes, std::string> file_checksum(const std::filesystem::path& path) {
  const io::FileDescriptor file = io::open_to_read(path);
  std::vector<std::byte> piece(io::kReadAtOnce);
  uint32_t sum = 0;
  int64_t done = 0;
  for (size_t count = piece.size(); count == piece.size();) {
    count = io::read_at(file, path, done, piece);
    sum = io::crc32c(std::span(piece).first(count), sum);
    done += static_cast<int64_t>(count);
  }
  return {Bytes(done), io::hex(sum)};
}

TensorFile::TensorFile(const std::filesystem::path& path)
    : open_(new Open{path, io::open_to_read(path), {}, {}}) {
  struct stat status = {};
  if (::fstat(open_->file.get(), &status) != 0) io::fail_file(path, "cannot read", errno);
  if (!S_ISREG(status.st_mode)) io::fail_file(path, "is no regular file");
  std::array<std::byte, io::kLengthBytes> first = {};
  if (open_->read(0, first) != first.size()) {
    io::fail_file(path, "is no file of tensors: it has less than 8 bytes");
  }
  uint64_t length = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    length |= std::to_integer<uint64_t>(first[i]) << (8 * i);
  }
  if (length > io::kMaxHeaderBytes ||
      static_cast<int64_t>(length + io::kLengthBytes) > status.st_size) {
    io::fail_file(path, "is no file of tensors, or is cut short: it announces a header of " +
                            std::to_string(length) + " bytes");
  }
  std::string header(static_cast<size_t>(length), '\0');
  if (open_->read(io::kLengthBytes, std::as_writable_bytes(std::span(header))) != header.size()) {
    io::fail_file(path, "is cut short");
  }
  open_->table = parse_tensor_table(header, Bytes(status.st_size), path.string());
  open_->data = Bytes(static_cast<int64_t>(io::kLengthBytes + length));
}

TensorFile::~TensorFile() = default;
TensorFile::TensorFile(TensorFile&&) noexcept = default;

const TensorTable& TensorFile::table() const { return open_->table; }

void TensorFile::read(const TensorEntry& tensor, std::span<std::byte> to) const {
  if (static_cast<int64_t>(to.size()) != tensor.bytes.count()) {
    throw InternalError("tensor " + io::quoted(tensor.name) + " is read into memory of its size");
  }
  const int64_t at = (open_->data + tensor.offset).count();
  if (open_->read(at, to) != to.size()) io::fail_file(open_->path, "is cut short");
}

void TensorFile::verify() const {
  const TensorTable& table = open_->table;
  const std::vector<uint32_t> sums = io::read_checksums(table, open_->path);
  if (io::header_checksum(table, {sums.begin() + 1, sums.end()}) != sums[0]) {
    io::fail_file(open_->path, "is damaged: its header is not the one that was written");
  }
  std::vector<std::byte> piece;
  for (size_t i = 0; i < table.tensors.size(); ++i) {
    const TensorEntry& tensor = table.tensors[i];
    uint32_t sum = 0;
    for (int64_t done = 0; done < tensor.bytes.count();) {
      const int64_t left = tensor.bytes.count() - done;
      piece.resize(std::min<int64_t>(left, io::kReadAtOnce));
      if (open_->read((open_->data + tensor.offset).count() + done, piece) != piece.size()) {
        io::fail_file(open_->path, "is cut short");
      }
      sum = io::crc32c(piece, sum);
      done += static_cast<int64_t>(piece.size());
    }
    if (sum != sums[i + 1]) {
      io::fail_file(open_->path, "is damaged: the bytes of tensor " + io::quoted(tensor.name));
    }
  }
}

}  // namespace reprise
