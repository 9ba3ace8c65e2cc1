// Kernels of our own for max pooling of float32 planes. The caller chooses the type of the places.
// The kernels do no arithmetic but comparisons, and sums in ATen's order, so the bits are ATen's.
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

// Finds the maximum of each window and its place in the plane. The first of several equal maxima
// counts. If a window has NaNs, its last NaN is the maximum. `Place` is int16_t or int32_t; the
// last place of the plane must fit into it.
template <class Place>
void pool_plane(const float* input, float* output, Place* places, const PlanePooling& pooling);

// Sets grad_input to zero and adds the gradient of each window at the place of its maximum.
template <class Place>
void pool_plane_backward(const float* gradient, const Place* places, float* grad_input,
                         const PlanePooling& pooling);

}  // namespace reprise::runtime::internal::rewrite
