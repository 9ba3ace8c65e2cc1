// A tensor of samples x channels x pixels lies in memory as outer x channels x inner: with rows of pixels
// (inner > 1), or with channels last (inner = 1, and the pixels belong to outer). Loops over lanes let
// compilers make vectors.
#include "runtime/nn/abn_kernel.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "runtime/device/parallel.h"

namespace reprise::runtime::internal::nn {
namespace {

using runtime::nn::AbnActivation;

constexpr int64_t kLanes = 16;

struct ChannelLayout {
  int64_t outer = 1, channels = 1, inner = 1;
};

ChannelLayout layout_of(const at::Tensor& z) {
  const int64_t channels = z.size(1);
  const int64_t rest = z.numel() / std::max<int64_t>(1, channels);
  if (!z.is_contiguous()) return {.outer = rest, .channels = channels, .inner = 1};
  return {
      .outer = z.size(0), .channels = channels, .inner = rest / std::max<int64_t>(1, z.size(0))};
}

template <class Element>
using WideNumber = std::conditional_t<std::is_same_v<Element, double>, double, float>;

// y and dy of one element.
template <AbnActivation kActivation, class Number>
struct Inverted {
  Number y, dy;
  Inverted(Number z, Number dz, Number parameter, Number reciprocal) : y(z), dy(dz) {
    if constexpr (kActivation == AbnActivation::kLeakyRelu) {
      y = z > 0 ? z : z * reciprocal;
      dy = z > 0 ? dz : dz * parameter;
    } else if constexpr (kActivation == AbnActivation::kElu) {
      if (z > 0) return;
      // The least number above -1 stands for -1, too, whose logarithm is infinite.
      constexpr Number kLeast = (std::is_same_v<Number, double> ? 0x1p-53 : 0x1p-24) - 1;
      dy = dz * (z + parameter);
      y = std::log1p(std::max(z * reciprocal, kLeast));
    }
  }
};

template <AbnActivation kActivation, class Element>
struct AbnKernel {
  using Number = WideNumber<Element>;
  const ChannelLayout layout;
  const Element* const z;
  const Element* const dz;
  const Number parameter, reciprocal;

  Inverted<kActivation, Number> at(int64_t i) const {
    return {static_cast<Number>(z[i]), static_cast<Number>(dz[i]), parameter, reciprocal};
  }

  void add_row(int64_t begin, double& sum, double& product) const {
    std::array<Number, kLanes> sums{}, products{};
    int64_t i = 0;
    for (; i + kLanes <= layout.inner; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const auto found = at(begin + i + lane);
        sums[lane] += found.dy;
        products[lane] += found.dy * found.y;
      }
    }
    for (; i < layout.inner; ++i) {
      const auto found = at(begin + i);
      sums[i % kLanes] += found.dy;
      products[i % kLanes] += found.dy * found.y;
    }
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sum += static_cast<double>(sums[lane]);
      product += static_cast<double>(products[lane]);
    }
  }

  void sums(AbnSums& found) const {
    const int64_t elements = layout.outer * layout.inner;
    const int64_t least = at::internal::GRAIN_SIZE / std::max<int64_t>(1, elements);
    const int64_t grain = std::max<int64_t>(kLanes, least);
    device::parallel_ranges(layout.channels, grain, [&](int64_t begin, int64_t end) {
      for (int64_t o = 0; o < layout.outer; ++o) {
        for (int64_t c = begin; c < end; ++c) {
          const int64_t first = (o * layout.channels + c) * layout.inner;
          if (layout.inner > 1) {
            add_row(first, found.dy[c], found.dy_y[c]);
          } else {
            const auto one = at(first);
            found.dy[c] += static_cast<double>(one.dy);
            found.dy_y[c] += static_cast<double>(one.dy) * static_cast<double>(one.y);
          }
        }
      }
    });
  }

  void gradient(const AbnFactors& factors, Element* dx) const {
    const auto as_numbers = [](const std::vector<double>& from) {
      std::vector<Number> numbers;
      for (const double one : from) numbers.push_back(static_cast<Number>(one));
      return numbers;
    };
    const std::vector<Number> a = as_numbers(factors.a), b = as_numbers(factors.b),
                              c = as_numbers(factors.c);
    const int64_t row = layout.channels * layout.inner;
    const int64_t grain =
        std::max<int64_t>(1, at::internal::GRAIN_SIZE / std::max<int64_t>(1, row));
    device::parallel_ranges(layout.outer, grain, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        for (int64_t k = 0; k < layout.channels && layout.inner == 1; ++k) {
          const auto found = at(o * row + k);
          dx[o * row + k] = static_cast<Element>(a[k] * found.dy - b[k] * found.y - c[k]);
        }
        for (int64_t k = 0; k < layout.channels && layout.inner > 1; ++k) {
          const int64_t first = o * row + k * layout.inner;
          const Number ka = a[k], kb = b[k], kc = c[k];
          for (int64_t i = first; i < first + layout.inner; ++i) {
            const auto found = at(i);
            dx[i] = static_cast<Element>(ka * found.dy - kb * found.y - kc);
          }
        }
      }
    });
  }
};

template <class Element, class Work>
void with_kernel_of(const AbnInverse& inverse, const at::Tensor& z, const at::Tensor& dz,
                    const Work& work) {
  using Number = WideNumber<Element>;
  const auto run = [&]<AbnActivation kActivation>() {
    work(AbnKernel<kActivation, Element>{
        layout_of(z), z.const_data_ptr<Element>(), dz.const_data_ptr<Element>(),
        static_cast<Number>(inverse.parameter), static_cast<Number>(1 / inverse.parameter)});
  };
  switch (inverse.activation) {
    case AbnActivation::kLeakyRelu:
      return run.template operator()<AbnActivation::kLeakyRelu>();
    case AbnActivation::kElu:
      return run.template operator()<AbnActivation::kElu>();
    case AbnActivation::kIdentity:
      return run.template operator()<AbnActivation::kIdentity>();
  }
}

// Calls `work` with the kernel and a null pointer to the type of the elements.
template <class Work>
void with_kernel(const AbnInverse& inverse, const at::Tensor& z, const at::Tensor& dz,
                 const Work& work) {
  const auto run = [&]<class Element>(Element* none) {
    with_kernel_of<Element>(inverse, z, dz, [&](const auto& kernel) { work(kernel, none); });
  };
  switch (z.scalar_type()) {
    case at::kDouble:
      return run(static_cast<double*>(nullptr));
    case at::kHalf:
      return run(static_cast<at::Half*>(nullptr));
    case at::kBFloat16:
      return run(static_cast<at::BFloat16*>(nullptr));
    default:
      return run(static_cast<float*>(nullptr));
  }
}

}  // namespace

bool has_abn_kernel(const at::Tensor& z, const at::Tensor& dz) {
  if (!z.is_cpu() || z.strides() != dz.strides() || z.scalar_type() != dz.scalar_type())
    return false;
  return z.is_contiguous() || z.is_contiguous(at::MemoryFormat::ChannelsLast) ||
         z.is_contiguous(at::MemoryFormat::ChannelsLast3d);
}

AbnSums abn_sums(const AbnInverse& inverse, const at::Tensor& z, const at::Tensor& dz) {
  const size_t channels = static_cast<size_t>(z.size(1));
  AbnSums found{std::vector<double>(channels), std::vector<double>(channels)};
  with_kernel(inverse, z, dz, [&](const auto& kernel, auto*) { kernel.sums(found); });
  return found;
}

at::Tensor abn_gradient(const AbnInverse& inverse, const at::Tensor& z, const at::Tensor& dz,
                        const AbnFactors& factors) {
  const at::Tensor dx = at::empty_strided(z.sizes(), z.strides(), z.options());
  with_kernel(inverse, z, dz, [&]<class Element>(const auto& kernel, Element*) {
    kernel.gradient(factors, dx.mutable_data_ptr<Element>());
  });
  return dx;
}

std::pair<at::Tensor, at::Tensor> abn_inverted(const AbnInverse& inverse, const at::Tensor& z,
                                               const at::Tensor& dz) {
  const at::ScalarType wide = z.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor numbers = z.to(wide), gradient = dz.to(wide);
  if (inverse.activation == AbnActivation::kIdentity) return {numbers, gradient};
  const at::Tensor positive = numbers.gt(0);
  if (inverse.activation == AbnActivation::kLeakyRelu) {
    return {at::where(positive, numbers, numbers.div(inverse.parameter)),
            at::where(positive, gradient, gradient.mul(inverse.parameter))};
  }
  const double least = wide == at::kDouble ? 0x1p-53 : 0x1p-24;
  const at::Tensor inside = numbers.div(inverse.parameter).clamp_min(least - 1);
  return {at::where(positive, numbers, inside.log1p()),
          at::where(positive, gradient, gradient.mul(numbers.add(inverse.parameter)))};
}

}  // namespace reprise::runtime::internal::nn
