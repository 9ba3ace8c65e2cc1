#include "training/data_files.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include "reprise/model/errors.h"

namespace reprise::training::files {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kImagesMagic = 0x0803;  // unsigned bytes, 3 dimensions
constexpr uint32_t kLabelsMagic = 0x0801;  // unsigned bytes, 1 dimension
constexpr int64_t kMaxCount = 10'000'000;
constexpr int64_t kMaxSide = 4096;
constexpr int64_t kMaxBytes = int64_t{4} << 30;
constexpr size_t kChunk = size_t{1} << 20;

[[noreturn]] void fail(const fs::path& file, const std::string& message) {
  throw InputError(message, {.file = file.string(), .pointer = "", .line = 0});
}

bool file_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

bool directory_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// Returns the path with or without .gz, whichever exists; it is empty if neither does.
fs::path existing(const fs::path& directory, const std::string& name) {
  for (const char* suffix : {"", ".gz"}) {
    const fs::path path = directory / (name + suffix);
    if (file_exists(path)) return path;
  }
  return {};
}

// A Reader reads a file through zlib, which reads plain files as they are.
class Reader {
 public:
  explicit Reader(const fs::path& path) : path_(path), file_(gzopen(path.c_str(), "rb"), gzclose) {
    if (!file_) fail(path_, std::string("cannot be opened: ") + std::strerror(errno));
    gzbuffer(file_.get(), 1 << 17);
  }

  // Reads exactly `size` more bytes. The reader does not trust the claims of a header: memory grows
  // only with the bytes that have come.
  std::vector<uint8_t> read(int64_t size) {
    std::vector<uint8_t> bytes;
    while (static_cast<int64_t>(bytes.size()) < size) {
      const size_t done = bytes.size();
      const size_t part = std::min(kChunk, static_cast<size_t>(size) - done);
      if (bytes.capacity() < done + part) {
        bytes.reserve(std::min(static_cast<size_t>(size), std::max(2 * done, kChunk)));
      }
      bytes.resize(done + part);
      const int got = read_some(bytes.data() + done, part);
      bytes.resize(done + static_cast<size_t>(got));
      if (got == 0) {
        fail(path_, "is truncated: " + std::to_string(size - static_cast<int64_t>(done)) +
                        " bytes are missing");
      }
    }
    return bytes;
  }

  uint32_t read_word() {
    const std::vector<uint8_t> bytes = read(4);
    return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
  }

  // Throws unless the file ends here. Reading to the end also makes zlib compare the checksum.
  void expect_end() {
    uint8_t more = 0;
    if (read_some(&more, 1) != 0) fail(path_, "has more data than its header says");
  }

 private:
  int read_some(uint8_t* target, size_t size) {
    const int got = gzread(file_.get(), target, static_cast<unsigned>(size));
    int code = Z_OK;
    const char* message = gzerror(file_.get(), &code);
    // zlib reports a compressed stream that ends early beside the bytes that did come.
    if (got < 0 || code == Z_BUF_ERROR || code == Z_DATA_ERROR) {
      fail(path_, code == Z_BUF_ERROR ? std::string("is truncated: the compressed data end early")
                                      : std::string("cannot be read: ") + message);
    }
    return got;
  }

  fs::path path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

void expect_magic(Reader& reader, const fs::path& path, uint32_t expected) {
  const uint32_t magic = reader.read_word();
  if (magic == expected) return;
  char text[80];
  std::snprintf(text, sizeof text, "is not such an IDX file: it begins with 0x%08x, not 0x%08x",
                magic, expected);
  fail(path, text);
}

int64_t read_extent(Reader& reader, const fs::path& path, const char* what, int64_t largest) {
  const int64_t extent = reader.read_word();
  if (extent < 1 || extent > largest) {
    fail(path, std::string("has an impossible number of ") + what + ": " + std::to_string(extent));
  }
  return extent;
}

fs::path require(const fs::path& directory, const std::string& name) {
  const fs::path path = existing(directory, name);
  if (path.empty()) {
    fail(directory, "has no " + name + " or " + name +
                        ".gz; a directory of images holds the four IDX files of MNIST's layout "
                        "(for Fashion-MNIST: apt-get install dataset-fashion-mnist)");
  }
  return path;
}

}  // namespace

fs::path find_fashion_mnist() {
  std::vector<fs::path> places = {"/usr/share/datasets/fashion-mnist"};
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) {
    places.push_back(fs::path(cache) / "fashion-mnist");
  }
  if (const char* home = std::getenv("HOME"); home && *home) {
    places.push_back(fs::path(home) / ".cache" / "fashion-mnist");
  }
  for (const char* place : {"data/fashion-mnist", "data/FashionMNIST/raw", "data"}) {
    places.emplace_back(place);
  }
  std::string searched;
  for (const fs::path& place : places) {
    if (!existing(place, "train-images-idx3-ubyte").empty()) return place;
    searched += (searched.empty() ? "" : ", ") + place.string();
  }
  throw InputError("Fashion-MNIST is not on this machine (searched " + searched +
                   "); install it with: apt-get install dataset-fashion-mnist, or name the "
                   "directory that has its files");
}

Images read_images(const fs::path& directory, bool train) {
  if (!directory_exists(directory)) fail(directory, "is not a directory");
  const std::string prefix = train ? "train" : "t10k";
  const fs::path images_path = require(directory, prefix + "-images-idx3-ubyte");
  const fs::path labels_path = require(directory, prefix + "-labels-idx1-ubyte");
  Images images;
  Reader pixels(images_path);
  expect_magic(pixels, images_path, kImagesMagic);
  images.count = read_extent(pixels, images_path, "images", kMaxCount);
  images.rows = read_extent(pixels, images_path, "rows", kMaxSide);
  images.columns = read_extent(pixels, images_path, "columns", kMaxSide);
  const int64_t bytes = images.count * images.rows * images.columns;  // below 2^48
  if (bytes > kMaxBytes) fail(images_path, "exceeds 4 GiB of pixels");
  images.pixels = pixels.read(bytes);
  pixels.expect_end();

  Reader labels(labels_path);
  expect_magic(labels, labels_path, kLabelsMagic);
  const int64_t count = read_extent(labels, labels_path, "labels", kMaxCount);
  if (count != images.count) {
    fail(labels_path, "has " + std::to_string(count) + " labels for the " +
                          std::to_string(images.count) + " images of " + images_path.string());
  }
  images.labels = labels.read(count);
  labels.expect_end();
  return images;
}

std::vector<uint8_t> read_text(const fs::path& file) {
  if (!file_exists(file)) {
    fail(file, directory_exists(file) ? "is a directory; a model of text takes a file"
                                      : "does not exist or is not a file");
  }
  std::error_code error;
  const uintmax_t size = fs::file_size(file, error);
  if (error) fail(file, "cannot be read: " + error.message());
  if (size > static_cast<uintmax_t>(kMaxBytes)) fail(file, "exceeds 4 GiB");
  std::vector<uint8_t> bytes(size);
  std::ifstream in(file, std::ios::binary);
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  if (!in || static_cast<uintmax_t>(in.gcount()) != size) fail(file, "cannot be read");
  return bytes;
}

}  // namespace reprise::training::files
