#include "runtime/rewrite/activation/plane_pooling.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

// The loops are plain C++. The compiler writes them for two kinds of processor, and the program
// selects one at its start.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define REPRISE_FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define REPRISE_FOR_EACH_PROCESSOR
#endif

namespace reprise::runtime::internal::rewrite {
namespace {

using Side = PlanePooling::Side;

constexpr int64_t kChunk = 64;  // windows of a row whose maxima are found together

// Compares one element of each of `count` windows with the maximum so far. The elements lie at
// `input`, `stride` apart. The place of the first one is `place`.
template <int64_t kStride>
inline void take(const float* __restrict input, int64_t stride, int32_t place, int64_t count,
                 float* __restrict maxima, int32_t* __restrict places) {
  if constexpr (kStride > 0) stride = kStride;  // lets the compiler know it
  for (int64_t x = 0; x < count; ++x) {
    const float element = input[x * stride];
    const bool takes = (element > maxima[x]) | (element != element);
    maxima[x] = takes ? element : maxima[x];
    places[x] = takes ? place + static_cast<int32_t>(x * stride) : places[x];
  }
}

REPRISE_FOR_EACH_PROCESSOR
void take_each(const float* input, int64_t stride, int32_t place, int64_t count, float* maxima,
               int32_t* places) {
  if (stride == 1) return take<1>(input, stride, place, count, maxima, places);
  if (stride == 2) return take<2>(input, stride, place, count, maxima, places);
  take<0>(input, stride, place, count, maxima, places);
}

struct Range {
  int64_t begin = 0, end = 0;
};

// Returns the taps of a window that lie inside the plane.
Range taps_of(const Side& side, int64_t window) {
  const int64_t first = window * side.stride - side.padding;
  const int64_t begin = first < 0 ? (-first + side.dilation - 1) / side.dilation : 0;
  const int64_t end = (side.input - first + side.dilation - 1) / side.dilation;
  return {begin, std::min(side.kernel, end)};
}

// Returns the windows of `windows` for which the tap lies inside the plane.
Range windows_of(const Side& side, int64_t tap, Range windows) {
  const int64_t offset = tap * side.dilation - side.padding;
  const int64_t first = offset < 0 ? (-offset + side.stride - 1) / side.stride : 0;
  const int64_t last = offset >= side.input ? 0 : (side.input - 1 - offset) / side.stride + 1;
  return {std::max(first, windows.begin), std::min(last, windows.end)};
}

// Returns the position of the first tap of the window inside the plane.
int64_t first_of(const Side& side, int64_t window, const Range& taps) {
  return window * side.stride - side.padding + taps.begin * side.dilation;
}

}  // namespace

template <class Place>
void pool_plane(const float* input, float* output, Place* places, const PlanePooling& pooling) {
  const Side &rows = pooling.rows, &columns = pooling.columns;
  std::array<float, kChunk> maxima;
  std::array<int32_t, kChunk> found, first_column;
  std::vector<Range> windows(static_cast<size_t>(columns.kernel));  // by tap
  for (int64_t x = 0; x < columns.output; x += kChunk) {
    // These positions hold for every row. They are full of divisions, so they are computed once for
    // each chunk.
    const Range chunk{x, std::min(x + kChunk, columns.output)};
    const int64_t count = chunk.end - chunk.begin;
    for (int64_t k = 0; k < count; ++k) {
      first_column[k] = static_cast<int32_t>(first_of(columns, x + k, taps_of(columns, x + k)));
    }
    for (int64_t j = 0; j < columns.kernel; ++j) windows[j] = windows_of(columns, j, chunk);
    for (int64_t y = 0; y < rows.output; ++y) {
      const Range taps = taps_of(rows, y);
      const int64_t first_row = first_of(rows, y, taps);
      for (int64_t k = 0; k < count; ++k) {
        maxima[k] = -std::numeric_limits<float>::infinity();
        found[k] = static_cast<int32_t>(first_row * columns.input) + first_column[k];
      }
      for (int64_t i = taps.begin; i < taps.end; ++i) {
        const int64_t row = first_row + (i - taps.begin) * rows.dilation;
        for (int64_t j = 0; j < columns.kernel; ++j) {
          const auto [begin, end] = windows[j];
          if (begin >= end) continue;
          const int64_t place =
              row * columns.input + begin * columns.stride - columns.padding + j * columns.dilation;
          take_each(input + place, columns.stride, static_cast<int32_t>(place), end - begin,
                    &maxima[begin - x], &found[begin - x]);
        }
      }
      for (int64_t k = 0; k < count; ++k) {
        output[y * columns.output + x + k] = maxima[k];
        places[y * columns.output + x + k] = static_cast<Place>(found[k]);
      }
    }
  }
}

template <class Place>
void pool_plane_backward(const float* gradient, const Place* places, float* grad_input,
                         const PlanePooling& pooling) {
  std::fill_n(grad_input, pooling.elements(), 0.0F);
  for (int64_t w = 0; w < pooling.windows(); ++w) grad_input[places[w]] += gradient[w];
}

template void pool_plane(const float*, float*, int16_t*, const PlanePooling&);
template void pool_plane(const float*, float*, int32_t*, const PlanePooling&);
template void pool_plane_backward(const float*, const int16_t*, float*, const PlanePooling&);
template void pool_plane_backward(const float*, const int32_t*, float*, const PlanePooling&);

}  // namespace reprise::runtime::internal::rewrite
