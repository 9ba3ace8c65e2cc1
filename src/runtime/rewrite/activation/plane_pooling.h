// Max pooling of planes of float32 with places in a type of the caller's: kernels of ours. There is no arithmetic in
// them but comparisons, and sums in ATen's order: the bits are ATen's.
#pragma once

#include <cstdint>

namespace reprise::runtime::internal::rewrite {

struct PlanePooling {
  struct Side {
    int64_t input = 0, output = 0;  // elements
    int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;
  };
  Side rows, columns;

  int64_t elements() const { return rows.input * columns.input; }
  int64_t windows() const { return rows.output * columns.output; }
};

// The maximum of each window, or a NaN in it, and where in the plane it is: the first of equal ones, the last NaN.
// `Place`: int16_t or int32_t, if the last place of the plane fits.
template <class Place>
void pool_plane(const float* input, float* output, Place* places, const PlanePooling& pooling);

// Adds the gradient of each window to that of its place, which starts from zero.
template <class Place>
void pool_plane_backward(const float* gradient, const Place* places, float* grad_input,
                         const PlanePooling& pooling);

}  // namespace reprise::runtime::internal::rewrite
