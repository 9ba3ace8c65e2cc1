// Reading the files of the data sets into host memory, with every claim of a file checked.
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

// The directory that holds Fashion-MNIST; InputError with the places searched and what to do.
std::filesystem::path find_fashion_mnist();

// One split of the four IDX files in `directory`, each plain or with .gz.
// Format: http://yann.lecun.com/exdb/mnist, "The IDX file format". Throws InputError for files that
// are missing, of another format, too short, too long or damaged, and when the counts differ.
Images read_images(const std::filesystem::path& directory, bool train);

// A whole file. Throws InputError for one that cannot be read or exceeds 4 GiB.
std::vector<uint8_t> read_text(const std::filesystem::path& file);

}  // namespace reprise::training::files
