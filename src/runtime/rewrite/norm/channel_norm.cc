// This file is compiled with -ffp-contract=off, so a product and a sum become one instruction only
// where the code says so. Only functions that has_channel_norm() guards use AVX2 instructions.
#include "runtime/rewrite/norm/channel_norm.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <array>

#define REPRISE_AVX2 __attribute__((target("avx2,fma")))

namespace reprise::runtime::internal::rewrite {
namespace {

constexpr int64_t kLanes = 8;
// The sums of so many channels are taken together, one in each lane of float64.
constexpr int64_t kChannels = 4;

struct Columns {
  __m128 each[4];
};

// Reads four elements of a row of each of four channels. Each of the four vectors has one element
// of each channel.
REPRISE_AVX2 Columns columns_of(const float* first, int64_t pixels) {
  __m128 a = _mm_loadu_ps(first), b = _mm_loadu_ps(first + pixels);
  __m128 c = _mm_loadu_ps(first + 2 * pixels), d = _mm_loadu_ps(first + 3 * pixels);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  return {{a, b, c, d}};
}

REPRISE_AVX2 __m128 column_of(const float* first, int64_t pixels) {
  return _mm_setr_ps(first[0], first[pixels], first[2 * pixels], first[3 * pixels]);
}

// The elements, or their squared distances from the mean, which float32 rounds.
template <bool kSquares>
REPRISE_AVX2 __m256d term_of(__m128 column, __m128 mean) {
  if constexpr (!kSquares) return _mm256_cvtps_pd(column);
  const __m128 centred = _mm_sub_ps(column, mean);
  return _mm256_cvtps_pd(_mm_mul_ps(centred, centred));
}

// Returns the sums over all elements of four channels, one element after another in ATen's order.
template <bool kSquares>
REPRISE_AVX2 __m256d sums_over(const float* input, const ChannelShape& shape, __m128 mean) {
  __m256d sum = _mm256_setzero_pd();
  for (int64_t n = 0; n < shape.samples; ++n) {
    const float* const first = input + n * shape.stride;
    int64_t i = 0;
    for (; i + 4 <= shape.pixels; i += 4) {
      for (const Columns columns = columns_of(first + i, shape.pixels);
           const __m128 column : columns.each) {
        sum = _mm256_add_pd(sum, term_of<kSquares>(column, mean));
      }
    }
    for (; i < shape.pixels; ++i) {
      sum = _mm256_add_pd(sum, term_of<kSquares>(column_of(first + i, shape.pixels), mean));
    }
  }
  return sum;
}

template <bool kSquares>
double sum_over(const float* input, const ChannelShape& shape, float mean) {
  double sum = 0;
  for (int64_t n = 0; n < shape.samples; ++n) {
    for (int64_t i = 0; i < shape.pixels; ++i) {
      const float element = input[n * shape.stride + i], centred = element - mean;
      sum += kSquares ? centred * centred : element;
    }
  }
  return sum;
}

struct Sums {
  float grad = 0;
  float product = 0;  // the sum of (input - mean) * grad
};

// A mask of the first `count` lanes. There are fewer than eight.
REPRISE_AVX2 __m256i first_lanes(int64_t count) {
  alignas(32) static constexpr std::array<int32_t, 2 * kLanes> kOnes{-1, -1, -1, -1,
                                                                     -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kOnes.data() + kLanes - count));
}

REPRISE_AVX2 float sum_of_lanes(__m256 v) {
  v = _mm256_add_ps(v, _mm256_permute2f128_ps(v, v, 0x01));
  v = _mm256_add_ps(v, _mm256_shuffle_ps(v, v, 0x4E));
  v = _mm256_add_ps(v, _mm256_shuffle_ps(v, v, 0xB1));
  return _mm256_cvtss_f32(v);
}

// Adds the first `count` lanes one after another.
REPRISE_AVX2 float sum_of_first(__m256 v, int64_t count) {
  alignas(32) std::array<float, kLanes> lanes;
  _mm256_store_ps(lanes.data(), v);
  float sum = lanes[0];
  for (int64_t i = 1; i < count; ++i) sum += lanes[i];
  return sum;
}

// Returns the sums over the pixels of one sample.
REPRISE_AVX2 Sums sums_of(const float* grad, const float* input, int64_t pixels, __m256 mean) {
  if (pixels < kLanes) {
    const __m256i lanes = first_lanes(pixels);
    const __m256 dy = _mm256_maskload_ps(grad, lanes);
    const __m256 x = _mm256_maskload_ps(input, lanes);
    return {sum_of_first(dy, pixels),
            sum_of_first(_mm256_mul_ps(_mm256_sub_ps(x, mean), dy), pixels)};
  }
  __m256 sum = _mm256_loadu_ps(grad);
  __m256 product = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(input), mean), sum);
  int64_t i = kLanes;
  for (; i + kLanes <= pixels; i += kLanes) {
    const __m256 dy = _mm256_loadu_ps(grad + i);
    const __m256 centred = _mm256_sub_ps(_mm256_loadu_ps(input + i), mean);
    sum = _mm256_add_ps(sum, dy);
    product = _mm256_add_ps(product, _mm256_mul_ps(centred, dy));
  }
  if (i < pixels) {
    // Lanes beyond the end keep their bits. ATen's compiler has made one instruction of this
    // product and sum, but not of those above.
    const __m256i lanes = first_lanes(pixels - i);
    const __m256 keep = _mm256_castsi256_ps(lanes);
    const __m256 dy = _mm256_maskload_ps(grad + i, lanes);
    const __m256 centred = _mm256_sub_ps(_mm256_maskload_ps(input + i, lanes), mean);
    sum = _mm256_blendv_ps(sum, _mm256_add_ps(sum, dy), keep);
    product = _mm256_blendv_ps(product, _mm256_fmadd_ps(centred, dy, product), keep);
  }
  return {sum_of_lanes(sum), sum_of_lanes(product)};
}

struct Line {  // values that all elements of a channel share
  __m256 mean, grad_mean, k, inverse, weight;
};

REPRISE_AVX2 __m256 grad_input_of(__m256 dy, __m256 x, const Line& line) {
  const __m256 rest =
      _mm256_fnmadd_ps(_mm256_sub_ps(x, line.mean), line.k, _mm256_sub_ps(dy, line.grad_mean));
  return _mm256_mul_ps(_mm256_mul_ps(rest, line.inverse), line.weight);
}

REPRISE_AVX2 void write_sample(const float* grad, const float* input, float* grad_input,
                               int64_t pixels, const Line& line) {
  int64_t i = 0;
  for (; i + kLanes <= pixels; i += kLanes) {
    const __m256 dy = _mm256_loadu_ps(grad + i), x = _mm256_loadu_ps(input + i);
    _mm256_storeu_ps(grad_input + i, grad_input_of(dy, x, line));
  }
  if (i == pixels) return;
  const __m256i lanes = first_lanes(pixels - i);
  const __m256 dy = _mm256_maskload_ps(grad + i, lanes);
  const __m256 x = _mm256_maskload_ps(input + i, lanes);
  _mm256_maskstore_ps(grad_input + i, lanes, grad_input_of(dy, x, line));
}

}  // namespace

bool has_channel_norm() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}

REPRISE_AVX2 void channel_statistics(const float* input, const ChannelShape& shape, int64_t count,
                                     float* mean, float* squares) {
  const auto m = static_cast<double>(shape.samples * shape.pixels);
  int64_t c = 0;
  for (; c + kChannels <= count; c += kChannels) {
    const float* const first = input + c * shape.pixels;
    const __m256d sums = sums_over<false>(first, shape, _mm_setzero_ps());
    const __m128 means = _mm256_cvtpd_ps(_mm256_div_pd(sums, _mm256_set1_pd(m)));
    _mm_storeu_ps(mean + c, means);
    _mm_storeu_ps(squares + c, _mm256_cvtpd_ps(sums_over<true>(first, shape, means)));
  }
  for (; c < count; ++c) {
    const float* const first = input + c * shape.pixels;
    mean[c] = static_cast<float>(sum_over<false>(first, shape, 0) / m);
    squares[c] = static_cast<float>(sum_over<true>(first, shape, mean[c]));
  }
}

REPRISE_AVX2 void normalise_row(const float* input, float* output, int64_t pixels,
                                const ChannelNorm& norm) {
  const float alpha = norm.inverse_deviation * norm.weight;
  const __m256 alphas = _mm256_set1_ps(alpha);
  const __m256 betas = _mm256_set1_ps(__builtin_fmaf(-norm.mean, alpha, norm.bias));
  int64_t i = 0;
  for (; i + kLanes <= pixels; i += kLanes) {
    _mm256_storeu_ps(output + i, _mm256_fmadd_ps(_mm256_loadu_ps(input + i), alphas, betas));
  }
  if (i == pixels) return;
  const __m256i lanes = first_lanes(pixels - i);
  _mm256_maskstore_ps(output + i, lanes,
                      _mm256_fmadd_ps(_mm256_maskload_ps(input + i, lanes), alphas, betas));
}

REPRISE_AVX2 ChannelGradient channel_backward(const float* grad, const float* input,
                                              float* grad_input, const ChannelShape& shape,
                                              const ChannelNorm& norm) {
  const __m256 mean = _mm256_set1_ps(norm.mean);
  double sum = 0, product = 0;
  for (int64_t n = 0; n < shape.samples; ++n) {
    const Sums sums =
        sums_of(grad + n * shape.stride, input + n * shape.stride, shape.pixels, mean);
    sum += sums.grad;
    product += sums.product;
  }
  const float inverse = norm.inverse_deviation;
  const int64_t m = shape.samples * shape.pixels;
  const float k = static_cast<float>(product) * inverse * inverse / static_cast<float>(m);
  const float grad_mean = static_cast<float>(sum / static_cast<double>(m));
  const Line line{mean, _mm256_set1_ps(grad_mean), _mm256_set1_ps(k), _mm256_set1_ps(inverse),
                  _mm256_set1_ps(norm.weight)};
  for (int64_t n = 0; n < shape.samples; ++n) {
    write_sample(grad + n * shape.stride, input + n * shape.stride, grad_input + n * shape.stride,
                 shape.pixels, line);
  }
  return {static_cast<float>(product * inverse), static_cast<float>(sum)};
}

}  // namespace reprise::runtime::internal::rewrite

#else

#include "reprise/model/errors.h"

namespace reprise::runtime::internal::rewrite {
namespace {

[[noreturn]] void refuse() {
  throw InternalError("the kernels of batch norms are not for this processor");
}

}  // namespace

bool has_channel_norm() { return false; }

void channel_statistics(const float*, const ChannelShape&, int64_t, float*, float*) { refuse(); }

void normalise_row(const float*, float*, int64_t, const ChannelNorm&) { refuse(); }

ChannelGradient channel_backward(const float*, const float*, float*, const ChannelShape&,
                                 const ChannelNorm&) {
  refuse();
}

}  // namespace reprise::runtime::internal::rewrite

#endif
