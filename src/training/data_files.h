// These functions read the files of the data sets into host memory, and check every claim of a
// file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace reprise::training::files {

struct Images {
  int64_t count = 0, rows = 0, columns = 0;
  std::vector<uint8_t> pixels;  // count x rows x columns
  std::vector<uint8_t> labels;  // count
};

// Returns the directory that holds Fashion-MNIST. Throws InputError with the places searched
// and a remedy.
std::filesystem::path find_fashion_mnist();

// Reads one split of the four IDX files in `directory`, each plain or with .gz. Format:
// http://yann.lecun.com/exdb/mnist, "The IDX file format". Throws InputError for files that are
// missing, of another format, too short, too long or damaged, and if the counts differ.
Images read_images(const std::filesystem::path& directory, bool train);

// Reads a whole file. Throws InputError for a file that cannot be read or exceeds 4 GiB.
std::vector<uint8_t> read_text(const std::filesystem::path& file);

}  // namespace reprise::training::files
